"""Runs the router: one process, a large accept queue, and a graceful end on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from toolkit.errors import ToolkitError
from toolkit.router.app import create_app
from toolkit.router.config import RouterConfig

# The usual 128 overflows when a few hundred clients connect at once; each then waits a second.
BACKLOG = 4096
# Longer than the idle time of common load balancers, so that they are the ones to close.
CLIENT_KEEPALIVE_S = 75


class RouterServer(uvicorn.Server):
    """Ends normally on SIGTERM and SIGINT: the requests in flight finish, then the process exits 0."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drains as uvicorn does, then cuts what is left: a client that stopped reading keeps its
        connection open for ever otherwise, and the event loop with it."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # The loop must see those closes through before it is closed itself.
        await asyncio.sleep(0)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own version raises the signal again after the drain, so that the exit code is not 0.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        caught = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in caught}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def build_server(config: RouterConfig) -> RouterServer:
    """The server, not yet listening.

    Raises:
        SettingsError: the access log cannot be written.
    """
    return RouterServer(
        uvicorn.Config(
            create_app(config),
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            backlog=BACKLOG,
            timeout_keep_alive=CLIENT_KEEPALIVE_S,
            timeout_graceful_shutdown=round(config.drain_timeout_s) or 1,
            access_log=False,
            server_header=False,
            log_level="warning",
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one.

    Raises:
        ToolkitError: the address cannot be used; says what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ToolkitError(
            f"The router cannot listen on {host} port {port}: {error.strerror or error}.",
            next_step="stop what uses that address (`ss -ltnp` names it) or choose another with --port",
        ) from error


def serve(config: RouterConfig) -> None:
    """Serves until SIGTERM or SIGINT, then drains.

    Raises:
        SettingsError, ToolkitError: before anything was served.
    """
    server = build_server(config)
    listener = listen(config.host, config.port)
    with listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"router listens on http://{shown}:{port}", file=sys.stderr, flush=True)
        server.run(sockets=[listener])
