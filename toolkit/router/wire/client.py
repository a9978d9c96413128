"""HTTP/1.1 to the engines: connections that are kept, timeouts, and one retry where it is safe."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, cast

from toolkit.router.wire.deadlines import Deadlines
from toolkit.router.wire.engine_connection import EngineConnection
from toolkit.router.wire.headers import RawHeaders
from toolkit.router.wire.origin import Origin
from toolkit.router.wire.stream import EngineFailed, EngineLeft, EngineStream, OnHead, Sink

__all__ = ["Answer", "EngineClient", "EngineFailed", "EngineLeft", "EngineLeg", "EngineStream", "Sink"]

Piece = bytes | memoryview
Body = bytes | Sequence[Piece]

MAX_ANSWER_BYTES = 64 << 20
_TICK_S = 0.1


class EngineLeg(Protocol):
    """What the client needs to know of an engine."""

    @property
    def role(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def origin(self) -> Origin: ...
    def eject(self) -> None:
        """It cannot be reached."""
        ...


@dataclass(slots=True)
class Answer:
    status: int
    headers: RawHeaders
    body: bytes


class EngineClient:
    """Speaks to any number of engines from one event loop; there is no limit of connections.

    connect_timeout_s: for TCP and TLS together.
    idle_s: how long an unused connection is kept. Engines close theirs after 5 s, and reusing one then would
        race with that.
    tls: what an https engine's certificate is checked with; None trusts what this machine trusts.
    """

    def __init__(
        self, connect_timeout_s: float, idle_s: float = 3.0, tls: ssl.SSLContext | None = None
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._tls = tls
        self._idle: dict[Origin, dict[EngineConnection, None]] = {}
        self._open = Deadlines(min(_TICK_S, idle_s / 4))

    @property
    def connections(self) -> int:
        """Open ones, idle ones among them."""
        return len(self._open)

    async def whole(
        self,
        leg: EngineLeg,
        method: str,
        path: str,
        headers: bytes,
        body: Body | None,
        timeout_s: float,
        *,
        fresh: bool = False,
    ) -> Answer:
        """A request with its whole answer of at most 64 MiB, both within `timeout_s`.

        headers: ready lines. body: in one piece or several; None sends none.
        fresh: on a connection of its own, so that it is never sent a second time.

        Raises:
            EngineFailed: no complete answer.
        """
        until = monotonic() + timeout_s
        request = _request(method, leg.origin, path, headers, body)
        bodiless = method == "HEAD"
        stream = await self._exchange(
            leg, request, fresh=fresh, until=until, limit=MAX_ANSWER_BYTES, bodiless=bodiless
        )
        return Answer(stream.status, stream.headers, stream.body())

    def open(
        self,
        leg: EngineLeg,
        path: str,
        headers: bytes,
        body: Body,
        silence_s: float,
        on_sent: Callable[[], None] | None = None,
        *,
        on_head: OnHead | None = None,
        fresh: bool = False,
    ) -> Awaitable[EngineStream]:
        """A POST whose answer may come for hours, but not with more than `silence_s` of silence.

        on_sent: called once, when the operating system has taken the whole request: the engine will see it
            even if the stream is aborted after that.
        on_head: called when status and headers have come; answers with what takes the body, piece by piece as
            it comes, or with None.
        fresh: on a connection of its own, so that it is never sent a second time.

        Returns: the answer, of which status and headers have come. It must be read to its end or aborted,
            unless `on_head` named a taker: then it is complete.

        Raises:
            EngineFailed: no answer began, or the one that is taken broke or was silent for too long.
            whatever its taker raises.
        """
        request = _request("POST", leg.origin, path, headers, body)
        told = None if on_sent is None else _Once(on_sent)
        return self._exchange(leg, request, fresh=fresh, silence_s=silence_s, on_sent=told, on_head=on_head)

    async def _exchange(
        self,
        leg: EngineLeg,
        request: tuple[Sequence[Piece], int],
        *,
        fresh: bool,
        silence_s: float = 0.0,
        until: float = math.inf,
        limit: int | None = None,
        bodiless: bool = False,
        on_sent: Callable[[], None] | None = None,
        on_head: OnHead | None = None,
    ) -> EngineStream:
        """An answer: its head, or with `limit` all of it. A connection that the engine had closed before it
        saw the request is followed by a new one."""
        pieces, size = request
        connection = None if fresh else self._reusable(leg.origin)
        tried = False
        while True:
            if connection is None:
                within_s = min(self._connect_timeout_s, until - monotonic())
                connection = await self._connect(leg, within_s, again=tried)
            stream = EngineStream(
                leg,
                connection,
                silence_s=silence_s,
                until=until,
                limit=limit,
                bodiless=bodiless,
                on_head=on_head,
            )
            connection.send(stream, pieces, size, on_sent)
            try:
                await stream.wait()
            except EngineFailed:
                if not stream.stale:
                    raise
                connection, tried = None, True
            else:
                return stream

    def close(self) -> None:
        """Closes every connection; exchanges that still run fail as left."""
        for connection in cast(list[EngineConnection], self._open.watched()):
            connection.close()

    def _reusable(self, origin: Origin) -> EngineConnection | None:
        """The connection to that origin that was used last, no idle one any more."""
        idle = self._idle.get(origin)
        if idle:
            now = monotonic()
            while idle:
                connection, _ = idle.popitem()
                if connection.usable(now):
                    return connection
                connection.drop()
        return None

    async def _connect(self, leg: EngineLeg, timeout_s: float, *, again: bool) -> EngineConnection:
        """again: after a connection that took the request and then closed."""
        origin = leg.origin
        idle = self._idle.setdefault(origin, {})
        tls = None
        if origin.scheme == "https":
            tls = self._tls = self._tls or ssl.create_default_context()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: EngineConnection(idle, self._idle_s, self._open),
                    origin.host,
                    origin.port,
                    ssl=tls,
                    server_hostname=origin.host if tls else None,
                )
        except OSError as error:  # TimeoutError is one
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # Not the engine's fault.
                raise EngineFailed(leg, "cannot be reached (too many open files here)", sent=again) from error
            leg.eject()
            raise EngineFailed(leg, f"cannot be reached ({_reason(error)})", sent=again) from error
        if not connection.lost:
            self._open.add(connection)
        return connection


class _Once:
    """Calls back on the first call only: a request that is sent again tells of it once."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def __call__(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


def _request(
    method: str, origin: Origin, path: str, headers: bytes, body: Body | None
) -> tuple[Sequence[Piece], int]:
    """The pieces of a request and their size in bytes."""
    if body is None:
        length = b"" if method in ("GET", "HEAD") else b"content-length: 0\r\n"
        pieces: list[Piece] = []
        size = 0
    else:
        pieces = [body] if isinstance(body, bytes) else list(body)
        size = sum(map(len, pieces))
        length = b"content-length: %d\r\n" % size
    target = (origin.base + path).encode("ascii")
    head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b\r\n" % (
        method.encode("ascii"),
        target,
        origin.host_header,
        headers,
        length,
    )
    return [head, *pieces], len(head) + size


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or 'broken off'}"
    if isinstance(error, socket.gaierror):
        return "its name does not resolve"
    return (error.strerror or "no connection").lower()
