"""One client's connection: its requests in turn, its timeouts, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, cast

from toolkit.router.request.refusal import Refusal
from toolkit.router.wire.headers import RawHeaders
from toolkit.router.wire.reader import Request, RequestReader
from toolkit.router.wire.reply import Reply, head

# A client that is still sending while it is refused gets this long to see the answer and stop: from its
# latest byte, and in all.
_LINGER_QUIET_S = 2.0
_LINGER_S = 30.0
# How long a client may take over its goodbye (TLS has one) once it has been sent everything.
_GOODBYE_S = 5.0
# A body that comes more slowly than this in each `body_stall_s` counts as stalled.
_BODY_PROGRESS_BYTES = 1024
_JSON: RawHeaders = [(b"content-type", b"application/json")]
_log = logging.getLogger("toolkit.router")

# Where a connection stands: waiting for a request, in its head, in its body, answering (all of these may
# take another request), or ending: sent all and closing, refused and reading on for a while, closed.
_IDLE, _HEAD, _BODY, _ANSWERING, _CLOSING, _LINGERING, _CLOSED = range(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a client may do. Sizes are bytes, times are seconds.

    Attributes:
        header_timeout_s: from the first byte of a request to the end of its headers.
        body_stall_s: the longest time in which less than 1 KiB of a body comes.
        keepalive_s: how long a connection without a request stays open.
        stall_timeout_s: a client that takes nothing of its answer for so long counts as gone.
        max_connections: more are refused.
    """

    max_body_bytes: int
    max_header_bytes: int = 65536
    header_timeout_s: float
    body_stall_s: float
    keepalive_s: float = 75.0
    stall_timeout_s: float
    max_connections: int


class Serving(Protocol):
    """What a connection needs of its server."""

    limits: ServerLimits
    draining: bool

    def opened(self, connection: ServerConnection) -> Refusal | None:
        """A new connection; a refusal if there are too many."""
        ...

    def refused(self, status: int) -> None:
        """Something was answered so before it became a request."""
        ...

    def closed(self, connection: ServerConnection) -> None: ...

    def run(self, request: Request, reply: Reply) -> None:
        """Starts the handler."""
        ...


class ServerConnection(asyncio.Protocol):
    """Reads requests, has them handled one at a time, and tells a reply when its client is gone.

    Attributes:
        deadline: when `expired` is to be called, of time.monotonic.
        paused: more is written than the client takes.
        half_closed: the client sends nothing any more, and may have closed its connection altogether.
    """

    __slots__ = (
        "_body_mark",
        "_buffered",
        "_encrypted",
        "_held_back",
        "_limits",
        "_linger_until",
        "_progress_at",
        "_reader",
        "_reply",
        "_server",
        "_state",
        "deadline",
        "half_closed",
        "paused",
        "transport",
    )

    transport: asyncio.Transport
    _reader: RequestReader

    def __init__(self, server: Serving) -> None:
        self._server = server
        self._limits = server.limits
        self._state = _IDLE
        self._reply: Reply | None = None
        self._encrypted = self._held_back = False
        self._body_mark = 0
        # How much was not yet taken by the client when it was last looked at, and when that last got less.
        self._buffered = 0
        self._progress_at = 0.0
        self._linger_until = 0.0
        self.deadline = math.inf
        self.paused = False
        self.half_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        peer = transport.get_extra_info("peername")
        client = peer[0] if isinstance(peer, tuple) else ""
        self._reader = RequestReader(self._limits.max_body_bytes, self._limits.max_header_bytes, client)
        self.deadline = monotonic() + self._limits.keepalive_s
        refusal = self._server.opened(self)
        if refusal is not None:
            self._refuse(refusal)

    def connection_lost(self, _: Exception | None) -> None:
        self._state = _CLOSED
        self.deadline = math.inf
        self.half_closed = True
        self._reader.close()
        self._server.closed(self)
        reply, self._reply = self._reply, None
        if reply is not None:
            self.client_left(reply)

    def data_received(self, data: bytes) -> None:
        if self._state > _ANSWERING:
            if self._state == _LINGERING:
                self.deadline = min(self._linger_until, monotonic() + _LINGER_QUIET_S)
            return
        reader = self._reader
        reader.feed(data)
        if self._reply is None:
            self._next()
        elif reader.full:
            self._hold_back()

    def eof_received(self) -> bool:
        self.half_closed = True
        reply = self._reply
        if reply is not None and (self._encrypted or reply.on_gone is not None):
            self.client_left(reply)
        elif self._state == _LINGERING:
            self._close()
        elif reply is None:
            self._next()
        # Over TLS the transport closes by itself, and says so if asked not to.
        return not self._encrypted

    # The client's requests in turn.

    def _next(self) -> None:
        """Goes on after a byte came, an answer was given or the client took what was written."""
        if self._state > _ANSWERING or self.paused:
            return
        reader = self._reader
        if reader.requests:
            self._answer(reader.requests.popleft())
        elif reader.refusal is not None:
            self._refuse(reader.refusal)
        elif self.half_closed and reader.receiving:
            self._refuse(Refusal(400, "The connection was closed in the middle of the request."))
        elif reader.last or self.half_closed or (self._server.draining and not reader.receiving):
            self._close()
        else:
            self._await_more(reader)

    def _answer(self, request: Request) -> None:
        self._state = _ANSWERING
        self.deadline = math.inf
        self._reply = reply = Reply(self, request)
        reader = self._reader
        if self._held_back:
            reader.feed(b"")
            if not reader.full:
                self._held_back = False
                self.transport.resume_reading()
        elif reader.full:
            self._hold_back()
        self._server.run(request, reply)

    def _hold_back(self) -> None:
        """Enough requests wait. Meanwhile a client that leaves is noticed only by what is written to it."""
        self._held_back = True
        self.transport.pause_reading()

    def _await_more(self, reader: RequestReader) -> None:
        """A request is still to come or to be completed: sets the time for that."""
        if not reader.receiving:
            if self._state != _IDLE:
                self._state = _IDLE
                self.deadline = monotonic() + self._limits.keepalive_s
        elif not reader.in_body:
            if self._state != _HEAD:
                self._state = _HEAD
                self.deadline = monotonic() + self._limits.header_timeout_s
        elif self._state != _BODY or reader.received - self._body_mark >= _BODY_PROGRESS_BYTES:
            self._state = _BODY
            self._body_mark = reader.received
            self.deadline = monotonic() + self._limits.body_stall_s
            if reader.expects:
                reader.expects = False
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # What replies call.

    def takes_another(self, request: Request) -> bool:
        """Whether the connection stays open after the answer to this request."""
        if not request.keep_alive or self._server.draining:
            return False
        return not self.half_closed or bool(self._reader.requests)

    def answered(self, keep_alive: bool) -> None:
        self._reply = None
        if keep_alive:
            self._next()
        else:
            self._close()

    def client_left(self, reply: Reply) -> None:
        """The client is gone: says so to the reply, once, unless its answer is complete."""
        if reply.ended:
            return
        self.deadline = math.inf
        self.transport.abort()
        try:
            reply.client_is_gone()
        except Exception:
            _log.exception("what was to be done when a client left failed")

    # Backpressure, and a client that takes nothing.

    def pause_writing(self) -> None:
        self.paused = True
        self._watch()
        reply = self._reply
        if reply is not None and reply.on_pause is not None:
            reply.on_pause()

    def resume_writing(self) -> None:
        self.paused = False
        reply = self._reply
        if self._state > _ANSWERING:
            return
        self._state = _ANSWERING
        self.deadline = math.inf
        if reply is None:
            self._next()
        elif reply.on_resume is not None:
            reply.on_resume()

    def _watch(self) -> None:
        """From now on `expired` looks whether the client takes what is written."""
        self._buffered = self.transport.get_write_buffer_size()
        self._progress_at = monotonic()
        self.deadline = self._progress_at + self._limits.stall_timeout_s / 4

    def _check_taken(self) -> None:
        now = monotonic()
        buffered = self.transport.get_write_buffer_size()
        if buffered < self._buffered:
            self._progress_at = now
        self._buffered = buffered
        patience = self._limits.stall_timeout_s
        if not buffered:
            patience = min(patience, _GOODBYE_S)
        if now - self._progress_at < patience:
            self.deadline = min(now + self._limits.stall_timeout_s / 4, self._progress_at + patience)
        elif self._reply is not None:
            self.client_left(self._reply)
        else:
            self._cut()

    def expired(self) -> None:
        """The time for what the connection waits for is over."""
        if self.paused or self._state == _CLOSING:
            self._check_taken()
        elif self._state == _HEAD:
            self._refuse(Refusal(408, "The request's headers did not arrive in time."))
        elif self._state == _BODY:
            self._refuse(Refusal(408, "The request body did not arrive in time."))
        elif self._state == _IDLE:
            self._close()
        else:
            self._cut()

    # The end.

    def drain(self) -> None:
        """Closes the connection unless a request is on its way or being answered; those are the last."""
        if self._state == _IDLE:
            self._close()

    def _refuse(self, refusal: Refusal) -> None:
        """Answers what is no request, or comes too late, and ends the connection."""
        self._server.refused(refusal.status)
        headers = list(_JSON)
        if refusal.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % refusal.retry_after_s))
        body = refusal.body()
        framing = b"content-length: %d\r\nconnection: close\r\n" % len(body)
        self.transport.write(head(refusal.status, headers, framing) + body)
        if self.half_closed:
            self._close()
            return
        # Closing on a client that is sending would reset its connection and take our answer with it.
        self._state = _LINGERING
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()
        now = monotonic()
        self._linger_until = now + _LINGER_S
        self.deadline = now + _LINGER_QUIET_S

    def _close(self) -> None:
        """Closes as soon as the client has taken what is written."""
        self._state = _CLOSING
        self.transport.close()
        self._watch()

    def _cut(self) -> None:
        self.deadline = math.inf
        self.transport.abort()
