"""The HTTP/1.1 server: one coroutine per request, a bound on everything that a client can make it hold."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, cast

from toolkit.router.request.refusal import Refusal, error_body
from toolkit.router.wire.deadlines import Deadlines
from toolkit.router.wire.reader import Request
from toolkit.router.wire.reply import Reply
from toolkit.router.wire.server_connection import ServerConnection, ServerLimits

__all__ = ["BACKLOG", "Handler", "HttpServer", "Reply", "Request", "ServerLimits"]

Handler = Callable[[Request, Reply], Coroutine[Any, Any, None]]

# The usual 128 overflows when a few hundred clients connect at once; each then waits a second.
BACKLOG = 4096
# A refused connection is held a moment; beyond so many of them they are cut without a word.
_MAX_REFUSED = 1024
# Requests that the end of the drain cuts off still tell their clients.
_LAST_WORDS_S = 5.0
_MAX_TICK_S = 0.25
_TELL_FULL_S = 10.0
_log = logging.getLogger("toolkit.router")


class HttpServer:
    """Serves HTTP/1.1 and 1.0 on a listening socket.

    Attributes:
        draining: every answer is the last of its connection.
    """

    def __init__(
        self,
        handler: Handler,
        limits: ServerLimits,
        on_refusal: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_refusal` is told the status of what was refused before it became a request for the handler."""
        self.limits = limits
        self._on_refusal = on_refusal
        self.draining = False
        self._handler = handler
        shortest = min(
            limits.header_timeout_s, limits.body_stall_s, limits.keepalive_s, limits.stall_timeout_s
        )
        self._open = Deadlines(min(_MAX_TICK_S, shortest / 4))
        self._running: dict[Reply, asyncio.Task[None]] = {}
        self._listening: asyncio.Server | None = None
        self._all_closed: asyncio.Future[None] | None = None
        self._tell_full_at = 0.0

    @property
    def connections(self) -> int:
        return len(self._open)

    @property
    def running(self) -> int:
        """Requests that are being handled."""
        return len(self._running)

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accepts connections on a bound socket, which is the server's from now on.

        Raises:
            OSError: it cannot listen.
        """
        _probe_silent_peers(listener)
        # Asking for the running loop is a system call in Python 3.11, so each request does without.
        self._loop = asyncio.get_running_loop()
        self._listening = await self._loop.create_server(
            lambda: ServerConnection(self),
            sock=listener,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=self.limits.header_timeout_s if tls else None,
            ssl_shutdown_timeout=self.limits.stall_timeout_s if tls else None,
        )

    def stop_accepting(self) -> None:
        """Closes the listening socket; connections stay."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def drain(self, timeout_s: float) -> int:
        """Ends the service: idle connections close at once, requests get `timeout_s` to finish.

        Returns: how many requests were cut off. Their handlers are cancelled and have a few seconds to
            tell their clients.
        """
        self.stop_accepting()
        self.draining = True
        for connection in self._connections():
            connection.drain()
        await self._closed_within(timeout_s)
        cut = list(self._running.values())
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut, timeout=_LAST_WORDS_S)
            # A task that is cancelled before its first step never reaches its `finally`.
            self._running = {reply: task for reply, task in self._running.items() if not task.done()}
        # What is written but not taken by now stays untaken.
        for connection in self._connections():
            connection.transport.abort()
        await self._closed_within(_LAST_WORDS_S)
        return len(cut)

    async def _closed_within(self, timeout_s: float) -> None:
        if not self.connections and not self._running:
            return
        self._all_closed = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._all_closed], timeout=timeout_s)

    def _connections(self) -> list[ServerConnection]:
        return cast(list[ServerConnection], self._open.watched())

    # What connections call.

    def opened(self, connection: ServerConnection) -> Refusal | None:
        """A new connection; a refusal if there are too many."""
        self._open.add(connection)
        excess = self.connections - self.limits.max_connections
        if excess <= 0:
            return None
        if excess > _MAX_REFUSED:
            connection.transport.abort()
            return None
        message = f"All {self.limits.max_connections} connections of this server are in use. Try again."
        if monotonic() >= self._tell_full_at:
            self._tell_full_at = monotonic() + _TELL_FULL_S
            _log.warning("all %d connections are in use: others are refused", self.limits.max_connections)
        return Refusal(503, message, retry_after_s=1)

    def refused(self, status: int) -> None:
        """Something was answered so before it became a request."""
        self._on_refusal(status)

    def closed(self, connection: ServerConnection) -> None:
        self._open.discard(connection)
        self._note_end()

    def run(self, request: Request, reply: Reply) -> None:
        """Starts the handler."""
        self._running[reply] = reply.handler = self._loop.create_task(self._handle(request, reply))

    async def _handle(self, request: Request, reply: Reply) -> None:
        try:
            await self._handler(request, reply)
            if not (reply.ended or reply.gone):
                raise RuntimeError("the handler has left its request without an end")
        except asyncio.CancelledError:
            reply.abort()
            raise
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            if reply.started:
                reply.abort()
            else:
                body = error_body(500, "The router failed on this request; its log says why.")
                reply.whole(500, [(b"content-type", b"application/json")], body)
        finally:
            # It leads back here: without it both die now, and not when cycles are looked for.
            reply.handler = None
            self._running.pop(reply, None)
            self._note_end()

    def _note_end(self) -> None:
        waiting = self._all_closed
        if waiting is not None and not waiting.done() and not self.connections and not self._running:
            waiting.set_result(None)


def _probe_silent_peers(listener: socket.socket) -> None:
    """So that a client whose machine vanished is noticed in a minute; accepted sockets inherit it."""
    if listener.family in (socket.AF_INET, socket.AF_INET6):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
