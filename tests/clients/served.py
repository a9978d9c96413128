"""A real router, and SDK clients of it that note which way each of their requests took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai
from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

from toolkit.router.config import RouterConfig
from toolkit.router.serve import RouterServer, listen
from toolkit.testing.serving import in_thread, wait_until

PATIENCE_S = 60.0


@dataclass
class Ways:
    """The X-KV-Path and X-KV-Read-Tokens of each answer, in the order in which they began."""

    paths: list[str | None] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    def note(self, response: Any) -> None:
        self.paths.append(response.headers.get("x-kv-path"))
        self.read.append(int(response.headers.get("x-kv-read-tokens", 0)))

    async def note_async(self, response: Any) -> None:
        self.note(response)


@dataclass
class Endpoint:
    """Makes clients as a user does, of a router or of an engine itself.

    Attributes:
        ways: of all requests of these clients.
    """

    url: str
    clients: ExitStack
    ways: Ways = field(default_factory=Ways)

    def openai(self, **options: Any) -> OpenAI:
        seen = openai.DefaultHttpxClient(**_watching(self.ways.note))
        settings = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options}
        return self.clients.enter_context(OpenAI(http_client=seen, **settings))

    def openai_async(self) -> AsyncOpenAI:
        """To be closed by who asks for it."""
        seen = openai.DefaultAsyncHttpxClient(**_watching(self.ways.note_async))
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=seen)

    def anthropic(self, **options: Any) -> Anthropic:
        seen = anthropic.DefaultHttpxClient(**_watching(self.ways.note))
        settings = {"base_url": self.url, "api_key": "none", "max_retries": 0, **options}
        return self.clients.enter_context(Anthropic(http_client=seen, **settings))


@dataclass(kw_only=True)
class Router(Endpoint):
    """A router that runs."""

    log: Path

    def logged(self, requests: int) -> list[str]:
        """The lines of the access log, as soon as there are so many."""
        wait_until(lambda: len(self.log.read_text().splitlines()) >= requests)
        return self.log.read_text().splitlines()


@contextmanager
def run_router(prefill: Sequence[str], decode: Sequence[str], log: Path, **settings: Any) -> Iterator[Router]:
    """Runs a router in a thread on a free port; the clients that were made of it are closed with it."""
    config = RouterConfig(
        prefill=tuple(prefill), decode=tuple(decode), access_log=log, drain_timeout_s=1.0, **settings
    )
    server = RouterServer(config)
    with (
        listen("127.0.0.1", 0) as listener,
        in_thread(lambda: server.run(listener), is_up=lambda: server.started, stop=server.stop),
        ExitStack() as clients,
    ):
        host, port = listener.getsockname()[:2]
        yield Router(f"http://{host}:{port}", clients, log=log)


def _watching(note: Callable[[Any], object]) -> dict[str, Any]:
    return {"event_hooks": {"response": [note]}, "timeout": PATIENCE_S}
