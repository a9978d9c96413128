"""The load: streams of requests over kept connections, on the loop of the stub engine.

Callbacks all the way: a coroutine per request would cost the core more than the router under test does.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, cast

import httptools

from bench.router import BenchFailed
from bench.router.bodies import Turn

PATH = "/v1/chat/completions"
CONNECT_S = 10.0
_EVENT = b"data: "
_END = b"data: [DONE]\n\n"
_PARAMS = b'"kv_transfer_params":'
_AFTER_PARAMS = b',"ec_transfer_params":'

Turns = tuple[tuple[Turn, ...], int]
"""The turns of a conversation, and its number."""


class LoadFailed(BenchFailed):
    """An answer that no measurement may count."""


@dataclass
class Tally:
    """What a run has counted so far; `first` are seconds from a request to its answer's first byte."""

    events_expected: int
    done: int = 0
    events: int = 0
    first: list[float] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)
    failure: str | None = None

    def check(self) -> None:
        """Raises LoadFailed where any answer was not what the stub engine streams."""
        if self.failure:
            raise LoadFailed(self.failure)

    def count(self, who: str, status: int, path: str, answer: bytes) -> None:
        self.done += 1
        self.paths[path] += 1
        events = answer.count(_EVENT)
        if status != 200 or events != self.events_expected or not answer.endswith(_END):
            self.failure = f"{who}: status {status}, {events} events of {self.events_expected}: {answer!r}"


class Connection(asyncio.Protocol):
    """One kept connection; it reports each answer's first byte and its end."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self.path = ""
        self.on_first: Callable[[], None] | None = None
        self.on_done: Callable[[int, bytes], None] = _nothing
        self.on_lost: Callable[[], None] = _nothing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's in the eyes of isinstance.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 9 and name.lower() == b"x-kv-path":
            self.path = value.decode()

    def on_body(self, piece: bytes) -> None:
        if self.on_first is not None:
            told, self.on_first = self.on_first, None
            told()
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        answer, self._pieces = b"".join(self._pieces), []
        self.on_done(self._parser.get_status_code(), answer)


class ChunkConnection(Connection):
    """Counts a stream's events as they come, not at its end."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def on_body(self, piece: bytes) -> None:
        self._tally.events += piece.count(_EVENT)
        super().on_body(piece)


@dataclass(frozen=True)
class Door:
    """A port that takes requests, and the API key that it wants."""

    name: str
    port: int
    key: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def head(self, length: int, path: str | None = None) -> bytes:
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        key += f"x-kv-path: {path}\r\n" if path else ""
        return (
            f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n{key}user-agent: bench\r\n"
            f"accept: */*\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        ).encode()

    async def connect(self, kind: Callable[[], Connection] = Connection) -> Connection:
        """Raises LoadFailed when nobody listens."""
        try:
            async with asyncio.timeout(CONNECT_S):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(kind, "127.0.0.1", self.port)
        except OSError as error:
            raise LoadFailed(f"{self.name} takes no connection on port {self.port}: {error}") from error
        return connection


class Client(Protocol):
    """One of the concurrent clients of a run."""

    stopped: asyncio.Future[None]

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class RouterClient:
    """The turns of one conversation after another, each when the one before is answered."""

    def __init__(self, door: Door, connection: Connection, source: Iterator[Turns], tally: Tally) -> None:
        self._door, self._connection, self._tally = door, connection, tally
        self._source = source
        self._turns: Iterator[tuple[Turn, int]] = iter(())
        self._stopping = False
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection.on_done = self._done
        connection.on_lost = self._lost

    def start(self) -> None:
        turn, number = self._next()
        self._connection.on_first = self._first
        self._connection.transport.writelines((self._door.head(turn.size, turn.path), *turn.of(number)))
        self._sent = time.perf_counter()

    def stop(self) -> None:
        """After the answer that is under way."""
        self._stopping = True

    def close(self) -> None:
        """At once, whatever is under way."""
        self._connection.on_lost = _nothing
        self._connection.transport.close()
        if not self.stopped.done():
            self.stopped.set_result(None)

    def _next(self) -> tuple[Turn, int]:
        found = next(self._turns, None)
        if found is None:
            turns, number = next(self._source)
            self._turns = iter([(turn, number) for turn in turns])
            found = next(self._turns)
        return found

    def _first(self) -> None:
        self._tally.first.append(time.perf_counter() - self._sent)

    def _done(self, status: int, answer: bytes) -> None:
        self._tally.count(self._door.name, status, self._connection.path, answer)
        if self._stopping or self._tally.failure:
            self.close()
        else:
            self.start()

    def _lost(self) -> None:
        self._tally.failure = f"{self._door.name} closed the connection in the middle of an answer"
        self.close()


class DirectClient(RouterClient):
    """The floor: a client that asks prefill, then decode, itself and has nobody between."""

    def __init__(
        self,
        doors: tuple[Door, Door],
        connections: tuple[Connection, Connection],
        source: Iterator[Turns],
        tally: Tally,
    ) -> None:
        super().__init__(doors[1], connections[1], source, tally)
        self._prefill_door, self._prefill = doors[0], connections[0]
        self._prefill.on_done = self._prefilled
        self._prefill.on_lost = self._lost

    def start(self) -> None:
        turn, number = self._next()
        self._parts = turn.of(number)
        self._send(self._prefill_door, self._prefill, b'{"do_remote_decode":true,"do_remote_prefill":false}')
        self._sent = time.perf_counter()

    def _prefilled(self, _: int, answer: bytes) -> None:
        start = answer.index(_PARAMS) + len(_PARAMS)
        self._connection.on_first = self._first
        self._send(self._door, self._connection, answer[start : answer.index(_AFTER_PARAMS, start)])

    def _send(self, door: Door, connection: Connection, params: bytes) -> None:
        before, number, after = self._parts
        after = after[:-1] + b"," + _PARAMS + params + b"}"
        length = len(before) + len(number) + len(after)
        connection.transport.writelines((door.head(length), before, number, after))

    def close(self) -> None:
        self._prefill.on_lost = _nothing
        self._prefill.transport.close()
        super().close()


def _nothing(*_: object) -> None:
    pass
