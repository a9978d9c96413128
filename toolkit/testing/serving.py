"""Servers that run in a thread of a test, a port for them, and waiting for what they do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn


@contextmanager
def in_thread(
    run: Callable[[], object], *, is_up: Callable[[], object], stop: Callable[[], object]
) -> Iterator[None]:
    """Has `run` serve in a thread within the block, from when `is_up` is true until `stop` has ended it.

    Raises:
        RuntimeError: it ended before it was up.
    """
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while not is_up():
            if not thread.is_alive():
                raise RuntimeError("the server ended before it served")
            thread.join(0.005)
        yield
    finally:
        stop()
        thread.join()


@contextmanager
def serve_app(config: uvicorn.Config, port: int = 0) -> Iterator[str]:
    """Serves an ASGI app on a loopback port, 0: a free one; gives its URL."""
    server = uvicorn.Server(config)

    def stop() -> None:
        server.should_exit = True

    with (
        socket.create_server(("127.0.0.1", port)) as listener,
        in_thread(lambda: server.run(sockets=[listener]), is_up=lambda: server.started, stop=stop),
    ):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def free_port(host: str = "127.0.0.1") -> int:
    """A port where nobody listens just now."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def wait_until(true: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Polls until `true()` holds.

    Raises:
        TimeoutError: it did not within `timeout_s`.
    """
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if true():
            return
        pause.wait(0.01)
    raise TimeoutError("what was waited for did not happen")
