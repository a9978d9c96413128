"""A stub engine pair on one event loop, faster than any router: recorded answers, leases, nothing computed.

python -m bench.router.stub --prefill-port 8100 --decode-port 8200 --chunks 16 --gap-ms 20
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import socket
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast

import httptools
import orjson
import uvloop

from bench.router.handles import BLOCK_TOKENS
from bench.router.messages import Messages, head, whole
from bench.router.pattern import recorded
from bench.router.seen import Asked, read_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Role = Literal["prefill", "decode"]
BACKLOG = 4096
BYTES_PER_TOKEN = 4
MOST_LEASES = 200_000
"""A real decode engine gives up the oldest when its blocks run short."""
MOST_ENDED = 4096
LEASE_SECONDS = 480.0


class Leases:
    """The leases of the decode engine; the connector's answers, without its times."""

    def __init__(self) -> None:
        self._held: dict[bytes, None] = {}
        self._ended: dict[bytes, str] = {}
        self.granted = self.read = self.released = self.refused = self.given_up = 0

    def __len__(self) -> int:
        return len(self._held)

    def grant(self) -> bytes:
        name = base64.urlsafe_b64encode(random.randbytes(16))[:22]
        self._held[name] = None
        self.granted += 1
        if len(self._held) > MOST_LEASES:
            self._end(next(iter(self._held)), "given-up")
            self.given_up += 1
        return name

    def begin_read(self, name: bytes) -> bool:
        """Whether prefill may read; it reports the end of the read at once, and the lease ends with it."""
        ok = self._end(name, "read")
        self.read += ok
        return ok

    def release(self, name: str) -> None:
        self.released += self._end(name.encode(), "released")

    def _end(self, name: bytes, state: str) -> bool:
        """Whether there was such a lease; like the connector's book, it remembers some that ended."""
        if self._held.pop(name, self) is not None:
            return False
        self._ended[name] = state
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        return True

    def ask(self, operation: str, name: str) -> dict[str, Any]:
        """The answer of a lease route for one lease."""
        key = name.encode()
        if key not in self._held:
            self.refused += 1
            return {"ok": False, "state": self._ended.get(key, "unknown")}
        if operation == "release":
            self.release(name)
            return {"ok": True, "state": "released"}
        state = "claimed" if operation == "claim" else "held"
        now = asyncio.get_running_loop().time()
        return {
            "ok": True,
            "state": state,
            "seconds": LEASE_SECONDS,
            "remote_blocks_expiry_time": now + LEASE_SECONDS,
        }


@dataclass
class Pair:
    """What both engines share, and what a measurement may change between two runs.

    Attributes:
        chunks: tokens of each generation, one event each.
        gap_s: seconds between two tokens of a stream.
        jitter: the share of that by which streams differ at most, so that none stays in step with another.
        seen: every generate request as (role, path, body), where a list is given.
    """

    chunks: int = 16
    gap_s: float = 0.0
    jitter: float = 0.0
    leases: Leases = field(default_factory=Leases)
    seen: list[tuple[Role, str, dict[str, Any]]] | None = None
    requests: dict[Role, int] = field(default_factory=lambda: {"prefill": 0, "decode": 0})
    messages: dict[bytes, Messages] = field(
        default_factory=lambda: {
            b"/v1/chat/completions": Messages("chat"),
            b"/v1/completions": Messages("completions"),
        }
    )


class Engine(asyncio.Protocol):
    """One connection to one of the engines."""

    def __init__(self, pair: Pair, role: Role) -> None:
        self._pair, self._role = pair, role
        self._parser = httptools.HttpRequestParser(self)
        self._pieces: list[bytes] = []
        self._url = b""
        self._timers: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's in the eyes of isinstance.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        url, pieces = self._url, self._pieces
        self._url, self._pieces = b"", []
        messages = self._pair.messages.get(url)
        if messages is None or self._parser.get_method() != b"POST":
            self._transport.write(self._other(url, pieces))
            return
        self._pair.requests[self._role] += 1
        if self._pair.seen is not None:
            self._pair.seen.append((self._role, url.decode(), orjson.loads(b"".join(pieces))))
        asked = read_body(pieces)
        tokens = asked.size // BYTES_PER_TOKEN // BLOCK_TOKENS * BLOCK_TOKENS
        if self._role == "prefill":
            self._prefill(messages, asked, tokens)
        else:
            self._decode(messages, asked, tokens)

    def _prefill(self, messages: Messages, asked: Asked, tokens: int) -> None:
        offered = asked.lease is not None and self._pair.leases.begin_read(asked.lease)
        before, after = messages.prefill(tokens, min(tokens, asked.held) if offered else 0)
        # Prefill's own lease is for decode's pull and ends with it: nobody asks for it here.
        self._transport.write(before + b"prefills-own-lease-000" + after)

    def _decode(self, messages: Messages, asked: Asked, tokens: int) -> None:
        pair, count = self._pair, self._pair.chunks
        for name in asked.releases:
            pair.leases.release(name)
        if not asked.stream:
            before, after = messages.whole(tokens, count, kept=asked.keeps)
            self._transport.write(before + pair.leases.grant() + after if asked.keeps else before)
            return
        start = messages.stream_start(count)
        before, after = messages.stream_end(tokens, count, usage=asked.usage, kept=asked.keeps)
        end = before + pair.leases.grant() + after if asked.keeps else before
        if not pair.gap_s:
            self._transport.write(joined(start) + end)
            return
        self._transport.write(start[0])
        loop = asyncio.get_running_loop()
        now = loop.time()
        gap_s = pair.gap_s * (1 + pair.jitter * random.uniform(-1, 1))
        self._timers = [
            loop.call_at(now + number * gap_s, self._transport.write, piece)
            for number, piece in enumerate((*start[1:], end), start=1)
        ]

    def _other(self, url: bytes, pieces: Sequence[bytes]) -> bytes:
        """Everything but generations."""
        operation = url.removeprefix(b"/pd/leases/").decode()
        if operation in ("renew", "claim", "release") and self._role == "decode":
            names = orjson.loads(b"".join(pieces))["leases"]
            answers = {name: self._pair.leases.ask(operation, name) for name in names}
            return whole(recorded("leases-claim"), {"leases": answers})
        if url == b"/health":
            return head(recorded("health"), 0)
        if url == b"/v1/models":
            models = {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 262144}]}
            return whole(recorded("leases-claim"), models)
        if url == b"/metrics":
            text = f"pd_connector:leases_held {len(self._pair.leases)}\n".encode()
            return head(recorded("leases-claim"), len(text)) + text
        return whole(recorded("not-found"), {"detail": "Not Found"})


@lru_cache(64)
def joined(pieces: tuple[bytes, ...]) -> bytes:
    return b"".join(pieces)


@asynccontextmanager
async def serve(pair: Pair, prefill: socket.socket, decode: socket.socket) -> AsyncIterator[None]:
    """Both engines on the running loop, on sockets that are bound."""
    loop = asyncio.get_running_loop()
    roles: tuple[tuple[Role, socket.socket], ...] = (("prefill", prefill), ("decode", decode))
    servers = [
        await loop.create_server(lambda role=role: Engine(pair, role), sock=sock, backlog=BACKLOG)  # type: ignore[misc]
        for role, sock in roles
    ]
    try:
        yield
    finally:
        for server in servers:
            server.close()


def listener(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=BACKLOG)


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefill-port", type=int, required=True)
    parser.add_argument("--decode-port", type=int, required=True)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--gap-ms", type=float, default=0.0)
    given = parser.parse_args()
    pair = Pair(chunks=given.chunks, gap_s=given.gap_ms / 1000)
    async with serve(pair, listener(given.prefill_port), listener(given.decode_port)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
