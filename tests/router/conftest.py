"""Real routers and fake engines over real HTTP, started once for the whole folder."""

import http.client
import json
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from toolkit.router.config import RouterConfig
from toolkit.router.serve import build_server
from toolkit.testing.fake_engine import FakeEngine, serve_engine, serve_in_thread, wait_until

QUICK = {
    "health_interval_s": 0.1,
    "health_timeout_s": 1.0,
    "connect_timeout_s": 1.0,
    "prefill_timeout_s": 5.0,
    "stall_timeout_s": 5.0,
    "drain_timeout_s": 1.0,
}


@dataclass
class Response:
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def path(self):
        return self.headers.get("x-kv-path")


class Client:
    """A plain HTTP/1.1 client, one connection per request."""

    def __init__(self, url, log=None):
        self.url = url
        self.log = log

    def send(self, method, path, body=None, headers=None):
        """Sends a request; the answer is still to be read. Close the connection to leave."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        return connection

    def ask(self, method, path, body=None, headers=None):
        connection = self.send(method, path, body, headers)
        try:
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, names, answer.read())
        finally:
            connection.close()

    def chat(self, conversation=None, *, headers=None, **members):
        return self.ask("POST", "/v1/chat/completions", chat_body(conversation, **members), headers)

    def complete(self, conversation=None, *, headers=None, **members):
        body = {"model": "m", "prompt": "hello", **members}
        if conversation is not None:
            body["conversation_id"] = conversation
        return self.ask("POST", "/v1/completions", body, headers)


def chat_body(conversation=None, **members):
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **members}
    if conversation is not None:
        body["conversation_id"] = conversation
    return body


@dataclass
class Stage:
    """A router with its engines."""

    client: Client
    prefills: list
    decodes: list
    urls: list

    @property
    def engines(self):
        return [*self.prefills, *self.decodes]

    def seen(self, role):
        return [seen for engine in getattr(self, role) for seen in engine.seen]

    def reset(self):
        for engine in self.engines:
            engine.reset()
        wait_until(lambda: self.legs("prefill") == len(self.prefills))
        wait_until(lambda: self.legs("decode") == len(self.decodes))

    def legs(self, role):
        """How many legs of that role get traffic."""
        return sum(leg["healthy"] for leg in self.client.ask("GET", "/health").json[role])


@contextmanager
def run_router(prefill, decode, log, **overrides):
    config = RouterConfig(
        prefill=tuple(prefill), decode=tuple(decode), access_log=log, **{**QUICK, **overrides}
    )
    with serve_in_thread(build_server(config)) as url:
        yield Client(url, log)


@contextmanager
def run_stage(log, legs):
    with ExitStack() as stack:
        prefills = [FakeEngine("prefill", f"P{number}") for number in range(legs)]
        decodes = [FakeEngine("decode", f"D{number}") for number in range(legs)]
        urls = [stack.enter_context(serve_engine(engine)) for engine in (*prefills, *decodes)]
        client = stack.enter_context(run_router(urls[:legs], urls[legs:], log))
        yield Stage(client, prefills, decodes, urls)


@pytest.fixture(scope="session")
def whole_pair(tmp_path_factory):
    with run_stage(tmp_path_factory.mktemp("pair") / "access.log", 1) as stage:
        yield stage


@pytest.fixture(scope="session")
def whole_square(tmp_path_factory):
    with run_stage(tmp_path_factory.mktemp("square") / "access.log", 2) as stage:
        yield stage


@pytest.fixture
def pair(whole_pair):
    """One prefill and one decode engine behind a router."""
    whole_pair.reset()
    return whole_pair


@pytest.fixture
def square(whole_square):
    """Two prefill and two decode engines behind a router."""
    whole_square.reset()
    return whole_square


@pytest.fixture
def router(tmp_path):
    """Starts a router with settings of its own: `router(prefill_urls, decode_urls, **settings)`."""
    with ExitStack() as stack:
        yield lambda prefill, decode, **settings: stack.enter_context(
            run_router(prefill, decode, tmp_path / "access.log", **settings)
        )


@pytest.fixture
def engine(pair):
    """An engine for a router of one's own: `engine(role)` -> (engine, url)."""
    engines = {"prefill": (pair.prefills[0], pair.urls[0]), "decode": (pair.decodes[0], pair.urls[1])}
    return engines.__getitem__


@pytest.fixture
def conversation():
    """A conversation id that no other test uses."""
    return uuid.uuid4().hex


@pytest.fixture
def start_router():
    """Runs a router for a `with` block: `start_router(prefill_urls, decode_urls, log, **settings)`."""
    return run_router


@pytest.fixture
def make_client():
    """A client of any URL: `make_client(url)`."""
    return Client
