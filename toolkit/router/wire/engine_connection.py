"""One connection to an engine, and the exchange that has it for the moment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import cast

import httptools

from toolkit.router.wire.deadlines import Deadlines
from toolkit.router.wire.headers import RawHeaders
from toolkit.router.wire.stream import EngineFailed, EngineStream

# Requests up to this size are copied into one piece; the system call costs more for several than the copy.
_JOIN_BYTES = 16384
_MAX_HEAD_BYTES = 1 << 20
_BODILESS = frozenset({204, 304})


class EngineConnection(asyncio.Protocol):
    """Carries one exchange at a time; between two it waits among the idle ones of its origin.

    Attributes:
        deadline: when `expired` is to be called, of time.monotonic.
        reused: it has carried an exchange before this one.
    """

    __slots__ = (
        "_complete",
        "_deadlines",
        "_encrypted",
        "_heard",
        "_idle",
        "_idle_s",
        "_interim",
        "_keep",
        "_on_sent",
        "_parser",
        "_pieces",
        "_raw",
        "_stream",
        "_unsent",
        "_until_close",
        "deadline",
        "on_body",
        "reused",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, idle: dict[EngineConnection, None], idle_s: float, deadlines: Deadlines) -> None:
        self._idle = idle
        self._idle_s = idle_s
        self._deadlines = deadlines
        self._stream: EngineStream | None = None
        self._on_sent: Callable[[], None] | None = None
        self._unsent = self._encrypted = False
        # What the parser has found in the bytes of one read. It appends without a Python call.
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._raw: RawHeaders = []
        self._complete = self._interim = self._keep = self._until_close = False
        self._heard = 0
        self.reused = False
        self.deadline = math.inf
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        # So that `resume_writing` tells when the last byte was taken. TLS would pause on an empty buffer.
        self.transport.set_write_buffer_limits(high=1 if self._encrypted else 0, low=0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadlines.discard(self)
        self._idle.pop(self, None)
        self._fail("closed the connection" if exc is None else "broke the connection", stale=self._is_stale())
        self._parser = None
        self._on_sent = None

    def eof_received(self) -> None:
        stream = self._stream
        if stream is not None and self._until_close and not self._unsent:
            self._keep = False
            stream.complete = True
            self._finish(stream)
        else:
            self._fail("closed the connection", stale=self._is_stale())

    def _is_stale(self) -> bool:
        """The engine had closed an idle connection before it saw this request."""
        return self.reused and not self._heard

    def data_received(self, data: bytes) -> None:
        stream, parser = self._stream, self._parser
        if stream is None or parser is None:
            # An engine that speaks unasked cannot be trusted with a request.
            self.transport.abort()
            return
        self._heard += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("switched to another protocol")
            return
        except httptools.HttpParserError as error:
            self._fail(f"sent no valid HTTP ({error})")
            return
        if self._complete:
            stream.complete = True
        if stream.awaits_head and stream.status:
            stream.begun()
        pieces = self._pieces
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            sink = stream.sink
            if sink is None:
                stream.keep(piece)
            else:
                try:
                    sink(piece)
                except Exception as error:
                    self.drop()
                    stream.failed(error)
            if self._stream is not stream:
                return
        if self._complete:
            self._finish(stream)
        elif stream.status:
            if stream.silence_s:
                self.deadline = math.inf if stream.held else monotonic() + stream.silence_s
        elif self._heard > _MAX_HEAD_BYTES:
            self._fail("sent endless headers")

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False
        on_sent, self._on_sent = self._on_sent, None
        if on_sent is not None:
            on_sent()

    # What the parser calls, besides `on_body`.

    def on_message_begin(self) -> None:
        if self._complete:
            raise httptools.HttpParserError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._raw.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        stream, parser = self._stream, self._parser
        if stream is None or parser is None:
            return
        status = parser.get_status_code()
        raw, self._raw = self._raw, []
        if status < 200:
            self._interim = True
            return
        self._keep = parser.should_keep_alive()
        stream.status = status
        stream.headers = raw
        if stream.bodiless:
            # The parser would wait for the body that Content-Length announces.
            self._keep, self._complete = False, True
            return
        names = [name for name, _ in raw]
        self._until_close = (
            b"content-length" not in names and b"transfer-encoding" not in names and status not in _BODILESS
        )

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        else:
            self._complete = True

    # What the client and its streams call.

    @property
    def lost(self) -> bool:
        """The connection has ended."""
        return self._parser is None

    def send(
        self,
        stream: EngineStream,
        pieces: Sequence[bytes | memoryview],
        size: int,
        on_sent: Callable[[], None] | None,
    ) -> None:
        """Begins an exchange. `on_sent` is called once the operating system has taken every byte."""
        if self.lost:
            stream.failed(EngineFailed(stream.leg, "closed the connection", sent=False))
            return
        self._stream = stream
        self._heard = 0
        self._raw = []
        self._complete = self._interim = self._until_close = False
        self.deadline = monotonic() + stream.silence_s if stream.silence_s else stream.until
        if size <= _JOIN_BYTES:
            self.transport.write(b"".join(pieces))
        else:
            self.transport.writelines(pieces)
        if on_sent is not None:
            if self._unsent:
                self._on_sent = on_sent
            else:
                on_sent()

    def usable(self, now: float) -> bool:
        return self.deadline > now and not self.transport.is_closing()

    def drop(self) -> None:
        """Closes the connection at once; the exchange is over."""
        self._stream = None
        self._on_sent = None
        self.deadline = math.inf
        self.transport.abort()

    def close(self) -> None:
        """As `drop`; an exchange that still runs fails as left."""
        if self._stream is not None:
            self._stream.abort()
        else:
            self.drop()

    def expired(self) -> None:
        if self._stream is None:
            self._idle.pop(self, None)
            self.drop()
        else:
            self._fail(self._stream.late(), timed_out=True)

    def _finish(self, stream: EngineStream) -> None:
        self._stream = None
        if self._keep and not self._unsent:
            self.reused = True
            self.deadline = monotonic() + self._idle_s
            self.transport.resume_reading()
            self._idle[self] = None
        else:
            self.drop()
        stream.ended()

    def _fail(self, why: str, *, stale: bool = False, timed_out: bool = False) -> None:
        stream = self._stream
        if stream is not None:
            self.drop()
            stream.stale = stale
            stream.failed(EngineFailed(stream.leg, why, timed_out=timed_out))
