"""Asking an engine, over the port of NIXL's handshake, whether its blocks may be read now.

The engine that holds the blocks answers in the thread that serves handshakes (`answering`), from the book of
its scheduler; so it answers while it computes and while it sleeps. The engine that wants to read asks by
`asker`. A one-sided read would otherwise never learn that its blocks belong to others by now.
"""

import functools
import json
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

MARK = b"pd-read:"
"""First bytes of a question; a handshake is MessagePack and cannot begin like this."""
_MOST_BYTES = 4096
_serving = threading.local()


class Question(NamedTuple):
    """May `reader` read the blocks under this lease, as it knows them?"""

    host: str
    port: int
    lease: str
    reader: str
    seal: str

    def message(self) -> bytes:
        """As it travels."""
        return MARK + json.dumps([self.lease, self.reader, self.seal]).encode()


Answer = Callable[[str, str, str], bool]


@contextmanager
def serving(answer: Answer, ranks: Container[object]) -> Iterator[None]:
    """Sockets opened in this thread by a function wrapped by `answering` answer questions, and pass on the
    handshakes of `ranks` only: vLLM's listener, which has nobody to start it again, ends by any other."""
    _serving.socket = functools.partial(AnsweringSocket, answer=answer, ranks=ranks)
    try:
        yield
    finally:
        del _serving.socket


def answering(open_socket: Any) -> Any:
    """`open_socket(kind, path)` is vLLM's context manager that gives the handshake listener its socket."""
    if hasattr(open_socket, "pd_connector_stock"):
        return open_socket

    @contextmanager
    def opened(*args: Any, **kwargs: Any) -> Iterator[Any]:
        wrap = getattr(_serving, "socket", None)
        with open_socket(*args, **kwargs) as socket:
            yield socket if wrap is None else wrap(socket)

    opened.pd_connector_stock = open_socket  # type: ignore[attr-defined]
    return opened


class AnsweringSocket:
    """The listener's socket, which keeps questions to itself and passes on handshakes."""

    def __init__(self, socket: Any, answer: Answer, ranks: Container[object]) -> None:
        self._socket = socket
        self._answer = answer
        self._ranks = ranks

    def recv_multipart(self, *args: Any, **kwargs: Any) -> list[bytes]:
        """The next handshake."""
        while True:
            frames: list[bytes] = self._socket.recv_multipart(*args, **kwargs)
            if frames[-1].startswith(MARK):
                # What stands before the question is the way back, and the asker's own number of it.
                self._socket.send_multipart((*frames[:-1], b"1" if self._asked(frames[-1]) else b"0"))
            elif len(frames) == 3 and self._greets(frames[2]):
                return frames

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def _greets(self, message: bytes) -> bool:
        """One word, and a rank as `_ranks` has it: a number or, from 0.24 on, a pair of them."""
        import msgspec

        try:
            word, *rank = msgspec.msgpack.decode(message)
            return isinstance(word, bytes) and (rank[0] if len(rank) == 1 else tuple(rank)) in self._ranks
        except (ValueError, TypeError, IndexError, RecursionError):
            return False

    def _asked(self, message: bytes) -> bool:
        try:
            words = json.loads(message[len(MARK) : _MOST_BYTES])
        except (ValueError, RecursionError):
            return False
        well_formed = isinstance(words, list) and len(words) == 3 and all(isinstance(w, str) for w in words)
        return well_formed and self._answer(*words)
