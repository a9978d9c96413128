"""A port of this machine whose connections come out of the head node, towards another node of its network."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import BaseRequestHandler, ThreadingTCPServer

from paramiko import Channel

from toolkit.errors import ToolkitError

CHUNK = 64 * 1024
# Prints a line on stderr where nobody has set up logging, which is where a user of a tunnel looks.
log = logging.getLogger(__name__)


class _Listener(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def forwarded(open_channel: Callable[[], Channel], local_port: int) -> Iterator[int]:
    """The local port, while the block runs; each connection to it becomes a channel of its own. Raises
    ToolkitError if the port is in use."""

    class Forward(BaseRequestHandler):
        def handle(self) -> None:
            try:
                channel = open_channel()
            except ToolkitError as error:
                log.warning("%s", error)
                return
            _join(self.request, channel)

    try:
        server = _Listener(("127.0.0.1", local_port), Forward)
    except OSError as error:
        raise ToolkitError(
            f"can't listen on port {local_port} of this machine: {error.strerror}.",
            next_step="give another --port, or 0 for a free one",
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _join(local: socket.socket, channel: Channel) -> None:
    """Bytes both ways until both ends have said their last; a stream's events are passed on as they come."""
    local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with channel:
        back = threading.Thread(target=_pump_back, args=(channel, local), daemon=True)
        back.start()
        try:
            while data := local.recv(CHUNK):
                channel.sendall(data)
            channel.shutdown_write()
        except OSError:
            # One side has gone without a word, so the other is told the same way.
            channel.close()
        back.join()


def _pump_back(channel: Channel, local: socket.socket) -> None:
    try:
        while data := channel.recv(CHUNK):
            local.sendall(data)
        local.shutdown(socket.SHUT_WR)
    except OSError:
        channel.close()
