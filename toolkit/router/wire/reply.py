"""The way back to the client: head, chunks, end; and word of the client when it leaves or reads slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

from toolkit.router.wire.headers import RawHeaders
from toolkit.router.wire.reader import Request

if TYPE_CHECKING:
    from toolkit.router.wire.server_connection import ServerConnection

# Pieces up to this size are copied into one; the system call costs more for several than the copy does.
_JOIN_BYTES = 16384
_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
_BODILESS = frozenset({204, 304})

# How the body is framed. In the first state nothing may be written, in the last it is dropped.
_SILENT, _CHUNKED, _PLAIN, _DROPPED = range(4)


class Reply:
    """The answer to one request. Nothing here blocks; `on_pause` asks for less.

    Attributes:
        gone: the client left, or read nothing for `stall_timeout_s`, before the end.
        started, ended: an answer has begun, is complete (or was cut by `abort`).
        handler: the task that answers, while it does.
        paused: more is written than the client takes; `on_pause` was called, `on_resume` will be.
        on_pause, on_resume: called when that begins and ends.
    """

    __slots__ = (
        "_connection",
        "_framing",
        "_head",
        "_keep_alive",
        "_left",
        "_on_gone",
        "_request",
        "_told_gone",
        "ended",
        "gone",
        "handler",
        "on_pause",
        "on_resume",
        "started",
    )

    def __init__(self, connection: ServerConnection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._framing = _SILENT
        self._head = b""
        self._left: int | None = None
        self._keep_alive = False
        self._on_gone: Callable[[], None] | None = None
        self._told_gone = False
        self.gone = self.started = self.ended = False
        self.handler: asyncio.Task[None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    @property
    def paused(self) -> bool:
        return self._connection.paused

    @property
    def on_gone(self) -> Callable[[], None] | None:
        """Called exactly once when the client is gone; soon after it is set if the client is gone by then.

        A client that has closed only its sending side counts as gone while this is set. Without it an
        answer still reaches such a client.
        """
        return self._on_gone

    @on_gone.setter
    def on_gone(self, callback: Callable[[], None] | None) -> None:
        self._on_gone = callback
        if callback is not None and self._connection.half_closed and not self._told_gone:
            asyncio.get_running_loop().call_soon(self._connection.client_left, self)

    def start(self, status: int, headers: RawHeaders, length: int | None = None) -> None:
        """Begins an answer whose body follows by `write`; its head travels with the first piece.

        length: of the body in bytes; None sends it in chunks (HTTP/1.0: until the connection closes).

        Raises:
            RuntimeError: it has begun already.
            ValueError: a header holds a line break.
        """
        if self.started:
            raise RuntimeError("the answer has begun already")
        bodiless = self._request.method == "HEAD" or status in _BODILESS
        chunked = length is None and not self._request.http10
        self._keep_alive = self._connection.takes_another(self._request) and (length is not None or chunked)
        if status in _BODILESS:
            framing = b""
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        else:
            framing = b"transfer-encoding: chunked\r\n" if chunked else b""
        self._head = self._lines(status, headers, framing)
        self.started = True
        if self.gone:
            return
        self._left = length
        self._framing = _DROPPED if bodiless else _CHUNKED if chunked else _PLAIN

    def write(self, data: bytes) -> None:
        """Sends a piece of the body; does nothing once the client is gone.

        Raises:
            RuntimeError: not started, or ended.
            ValueError: more than the announced length.
        """
        framing = self._framing
        size = len(data)
        if framing == _CHUNKED:
            if size == 0:
                return
            head, self._head = self._head, b""
            if size > _JOIN_BYTES:
                self._connection.transport.writelines((b"%b%x\r\n" % (head, size), data, b"\r\n"))
            else:
                self._connection.transport.write(b"%b%x\r\n%b\r\n" % (head, size, data))
        elif framing == _PLAIN:
            if self._left is not None:
                if size > self._left:
                    raise ValueError("the body is longer than announced")
                self._left -= size
            self._flush()
            self._connection.transport.write(data)
        elif framing == _SILENT and not self.gone:
            raise RuntimeError("the answer has not begun or has ended")

    def end(self, data: bytes = b"") -> None:
        """Completes the answer, with a last piece if there is one: the two travel together.

        One that is shorter than announced is cut, so that the client sees it.

        Raises:
            RuntimeError: not started.
            ValueError: more than the announced length.
        """
        if self.ended or self.gone:
            return
        if not self.started:
            raise RuntimeError("the answer has not begun")
        if self._framing == _CHUNKED:
            last = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            self._connection.transport.write(self._head + last + b"0\r\n\r\n")
            self._head = b""
            self._finish()
            return
        if data:
            self.write(data)
        if self._framing == _PLAIN and self._left:
            self.abort()
            return
        self._flush()
        self._finish()

    def whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """The whole answer at once; does nothing once the client is gone.

        Raises:
            RuntimeError: an answer has begun already.
            ValueError: a header holds a line break.
        """
        if self.started:
            raise RuntimeError("the answer has begun already")
        self._keep_alive = self._connection.takes_another(self._request)
        bodiless = status in _BODILESS
        head = self._lines(status, headers, b"" if bodiless else b"content-length: %d\r\n" % len(body))
        self.started = True
        if self.gone:
            return
        if bodiless or self._request.method == "HEAD":
            body = b""
        if len(body) > _JOIN_BYTES:
            self._connection.transport.writelines((head, body))
        else:
            self._connection.transport.write(head + body)
        self._finish()

    def cancel(self) -> None:
        """Cancels the handler."""
        if self.handler is not None:
            self.handler.cancel()

    def abort(self) -> None:
        """Cuts the connection: the client sees that the answer is incomplete. Later pieces are dropped."""
        if not self.ended:
            self.ended = True
            self._framing = _DROPPED
            self._connection.transport.abort()

    def _finish(self) -> None:
        self.ended = True
        self._framing = _SILENT
        self._connection.answered(self._keep_alive)

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self.gone and not self.ended:
            self._connection.transport.write(head)

    def _lines(self, status: int, headers: RawHeaders, framing: bytes) -> bytes:
        if not self._keep_alive:
            framing += b"connection: close\r\n"
        elif self._request.http10:
            framing += b"connection: keep-alive\r\n"
        return head(status, headers, framing)

    def client_is_gone(self) -> None:
        """What the connection says once it is so. Not for handlers."""
        self.gone = True
        self._framing = _SILENT
        callback = self._on_gone
        if callback is not None and not self._told_gone:
            self._told_gone = True
            callback()


def head(status: int, headers: RawHeaders, framing: bytes) -> bytes:
    """Status line and headers with their end; `framing` holds ready lines.

    Raises:
        ValueError: a header holds a line break.
    """
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    text = b"".join(lines)
    if text.count(b"\n") != len(headers) + 1 or text.count(b"\r") != len(headers) + 1:
        raise ValueError("a header of the answer holds a line break")
    return b"%bdate: %b\r\n%b\r\n" % (text, _date(), framing)


_dated = (0, b"")


def _date() -> bytes:
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = (now, formatdate(now, usegmt=True).encode())
    return _dated[1]
