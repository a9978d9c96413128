"""Runs the router: one process, a large accept queue, and a graceful end on SIGTERM."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable

import uvloop

from toolkit.errors import ToolkitError
from toolkit.router.app import App
from toolkit.router.config import RouterConfig
from toolkit.router.running import Running
from toolkit.router.wire.server import HttpServer, ServerLimits

# The usual 128 overflows when a few hundred clients connect at once; each then waits a second.
BACKLOG = 4096

_log = logging.getLogger("toolkit.router")


class RouterServer:
    """One router on one socket. `run` returns after `stop`, a SIGTERM or a SIGINT, and the drain."""

    def __init__(self, config: RouterConfig) -> None:
        """Raises SettingsError: a file that the settings name cannot be used."""
        self._config = config
        self._running = Running(config)
        self._ending: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.started = False

    def run(self, listener: socket.socket, on_start: Callable[[], None] = lambda: None) -> None:
        """Serves until it is told to end. `on_start` is called as soon as clients are answered.

        Raises SettingsError: the map's file is damaged.
        """
        uvloop.run(self._serve(listener, on_start))

    def stop(self) -> None:
        """Ends `run`; from any thread."""
        if self._loop is not None and self._ending is not None:
            self._loop.call_soon_threadsafe(self._ending.set)

    async def _serve(self, listener: socket.socket, on_start: Callable[[], None]) -> None:
        config, running = self._config, self._running
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._catch_signals(self._ending)
        server = HttpServer(
            App(running.state, running.snapshots),
            ServerLimits(
                max_body_bytes=config.max_body_bytes,
                header_timeout_s=config.header_timeout_s,
                body_stall_s=config.stall_timeout_s,
                keepalive_s=config.keepalive_s,
                stall_timeout_s=config.stall_timeout_s,
                max_connections=config.max_connections,
            ),
            running.state.metrics.refused,
        )
        async with running:
            await server.start(listener, running.tls)
            self.started = True
            on_start()
            await self._ending.wait()
            _log.warning(
                "ends: takes no more connections; %d requests have %g s to finish",
                server.running,
                config.drain_timeout_s,
            )
            cut = await server.drain(config.drain_timeout_s)
            if cut:
                _log.warning("%d requests were cut off after %g s", cut, config.drain_timeout_s)

    def _catch_signals(self, ending: asyncio.Event) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, ending.set)


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
            next_step=_LISTEN_ELSEWHERE.get(error.errno, "give an address of this machine with --host"),
        ) from error


_LISTEN_ELSEWHERE: dict[int | None, str] = {
    errno.EADDRINUSE: "stop what uses that address (`ss -ltnp` names it) or choose another with --port",
    errno.EACCES: "choose a port from 1024 on with --port",
}


def serve(config: RouterConfig) -> None:
    """Serves until SIGTERM or SIGINT, then drains.

    Raises:
        SettingsError, ToolkitError: before anything was served.
    """
    server = RouterServer(config)
    listener = listen(config.host, config.port)
    with listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        scheme = "http" if config.tls_cert is None else "https"
        told = f"router listens on {scheme}://{shown}:{port}"
        server.run(listener, lambda: print(told, file=sys.stderr, flush=True))
