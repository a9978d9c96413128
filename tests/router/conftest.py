"""Real routers and fake engines over real HTTP, started once for the whole folder."""

import http.client
import json
import re
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from toolkit.router.config import RouterConfig
from toolkit.router.request.dialects import DIALECTS, Endpoint
from toolkit.router.serve import RouterServer, listen
from toolkit.testing.fake_engine import FakeEngine, serve_engine
from toolkit.testing.serving import in_thread, wait_until

# A turn whose handle is at hand is read back, so that it can be told by its path what the router remembers;
# what `auto` chooses has tests of its own. A leg stays in, however often tests break it: they have few.
SETTINGS = {
    "path": "readback",
    "eject_after": 1000,
    "health_interval_s": 0.1,
    "health_timeout_s": 2.0,
    "connect_timeout_s": 2.0,
    "prefill_timeout_s": 10.0,
    "stall_timeout_s": 10.0,
    "drain_timeout_s": 1.0,
}
_LOGGED = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


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

    @property
    def events(self):
        return [event for event in self.body.split(b"\n\n") if event]

    @property
    def read_tokens(self):
        return int(self.headers.get("x-kv-read-tokens", 0))


class Client:
    """A plain HTTP/1.1 client, one connection per request."""

    def __init__(self, url, log=None):
        self.url = url
        self.log = log

    @property
    def address(self):
        parts = urlsplit(self.url)
        return parts.hostname, parts.port

    def send(self, method, path, body=None, headers=None):
        """Sends a request; the answer is still to be read. Close the connection to leave."""
        connection = http.client.HTTPConnection(*self.address, timeout=20)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        return connection

    def ask(self, method, path, body=None, headers=None):
        return received(self.send(method, path, body, headers))

    def turn(self, endpoint, history, *, headers=None, **members):
        """A request of the endpoint: a text of the user, then of the assistant, and so on."""
        return self.ask("POST", endpoint, body_of(endpoint, history, **members), headers)

    def chat(self, conversation=None, *, headers=None, **members):
        return self.ask("POST", Endpoint.CHAT, chat_body(conversation, **members), headers)

    def complete(self, conversation=None, *, headers=None, **members):
        body = {"model": "m", "prompt": "hello", **members}
        if conversation is not None:
            body["conversation_id"] = conversation
        return self.ask("POST", Endpoint.COMPLETIONS, body, headers)

    def metric(self, name, **labels):
        """The sum of the samples of that name that have these labels."""
        text = self.ask("GET", "/metrics").body.decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def logged(self, request_id):
        """The members of a request's line in the log, waited for."""
        needle = f"request_id={request_id} "
        wait_until(lambda: needle in self.log.read_text())
        (line,) = [line for line in self.log.read_text().splitlines() if needle in line]
        return dict(_LOGGED.findall(line))


def received(connection):
    """The rest of an answer, whole."""
    try:
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, names, answer.read())
    finally:
        connection.close()


def body_of(endpoint, history, **members):
    """A history in the endpoint's form; `members` are added."""
    body = {"model": "m"}
    if endpoint == Endpoint.COMPLETIONS:
        body["prompt"] = "".join(history)
    else:
        body[DIALECTS[endpoint].history] = [
            {"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(history)
        ]
    if endpoint == Endpoint.MESSAGES:
        body["max_tokens"] = 4
    return {**body, **members}


def chat_body(conversation=None, **members):
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **members}
    if conversation is not None:
        body["conversation_id"] = conversation
    return body


@dataclass
class Engines:
    """Of both roles; `urls`: of prefill first."""

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


@dataclass
class Stage(Engines):
    """Engines and their router's client."""

    client: Client

    def reset(self):
        super().reset()
        wait_until(lambda: self.legs("prefill") == len(self.prefills))
        wait_until(lambda: self.legs("decode") == len(self.decodes))

    def legs(self, role):
        """How many legs of that role get traffic."""
        return sum(leg["healthy"] for leg in self.client.ask("GET", "/health").json[role])


@contextmanager
def serve_router(config):
    """Runs a router in a thread on a free port; gives its URL and drains it afterwards."""
    server = RouterServer(config)
    with (
        listen("127.0.0.1", 0) as listener,
        in_thread(lambda: server.run(listener), is_up=lambda: server.started, stop=server.stop),
    ):
        host, port = listener.getsockname()
        yield f"http://{host}:{port}"


@contextmanager
def run_router(prefill, decode, log, **overrides):
    config = RouterConfig(
        prefill=tuple(prefill), decode=tuple(decode), access_log=log, **{**SETTINGS, **overrides}
    )
    with serve_router(config) as url:
        yield Client(url, log)


@contextmanager
def run_engines(legs):
    with ExitStack() as stack:
        prefills = [FakeEngine("prefill", f"P{number}") for number in range(legs)]
        decodes = [FakeEngine("decode", f"D{number}") for number in range(legs)]
        urls = [stack.enter_context(serve_engine(engine)) for engine in (*prefills, *decodes)]
        yield Engines(prefills, decodes, urls)


@contextmanager
def stage_of(engines, log, **overrides):
    legs = len(engines.prefills)
    with run_router(engines.urls[:legs], engines.urls[legs:], log, **overrides) as client:
        yield Stage(engines.prefills, engines.decodes, engines.urls, client)


@contextmanager
def run_stage(log, legs, **overrides):
    with run_engines(legs) as engines, stage_of(engines, log, **overrides) as stage:
        yield stage


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


@pytest.fixture(scope="session")
def all_bare_engines():
    with run_engines(1) as one, run_engines(2) as two:
        yield one, two


@pytest.fixture
def bare(all_bare_engines):
    """One prefill and one decode engine that no other test's router asks anything."""
    engines, _ = all_bare_engines
    engines.reset()
    return engines


@pytest.fixture
def bare_square(all_bare_engines):
    """Two of each."""
    _, engines = all_bare_engines
    engines.reset()
    return engines


@pytest.fixture
def engine(bare):
    """An engine for a router of one's own: `engine(role)` -> (engine, url)."""
    engines = {"prefill": (bare.prefills[0], bare.urls[0]), "decode": (bare.decodes[0], bare.urls[1])}
    return engines.__getitem__


@pytest.fixture
def own(bare, tmp_path):
    """Puts a router with settings of its own before `bare`: `own(**settings)` -> Stage."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(stage_of(bare, tmp_path / "own.log", **settings))


@pytest.fixture
def own_square(bare_square, tmp_path):
    """The same before `bare_square`."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(stage_of(bare_square, tmp_path / "own.log", **settings))


@pytest.fixture
def conversation():
    """A conversation id that no other test uses."""
    return uuid.uuid4().hex


@pytest.fixture
def history():
    """`history(turns)`: texts of a conversation that no other test has, long enough to be known again."""
    first = f"{uuid.uuid4().hex} " + "Tell me a long story, please. " * 30
    texts = [first, "Once upon a time", "And then?", "Once upon a time", "Where?", "Once upon a time", "Why?"]
    return lambda turns: texts[: 2 * turns - 1]


@pytest.fixture(scope="session")
def start_stage():
    """Engines and their router for a `with` block: `start_stage(log, legs, **settings)` -> Stage."""
    return run_stage


@pytest.fixture
def start_router():
    """Runs a router for a `with` block: `start_router(prefill_urls, decode_urls, log, **settings)`."""
    return run_router


@pytest.fixture
def make_client():
    """A client of any URL: `make_client(url)`."""
    return Client


@pytest.fixture
def receive():
    """The whole answer of what `client.send` gave."""
    return received


@pytest.fixture
def make_body():
    """A history in an endpoint's form: `make_body(endpoint, history, **members)`."""
    return body_of
