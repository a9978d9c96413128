"""Asking an engine, over the port of NIXL's handshake, whether its blocks may be read now.

The engine that holds the blocks answers in the thread that serves handshakes (`answering`), from the book of
its scheduler; so it answers while it computes and while it sleeps. The engine that wants to read asks in
threads of its own (`Asker`). A one-sided read would otherwise never learn that its blocks belong to others
by now.
"""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

MARK = b"pd-read:"
"""First bytes of a question; a handshake is MessagePack and cannot begin like this."""
ANSWER_SECONDS = 2.0
"""An engine that does not answer within this time is taken for dead."""
_MOST_BYTES = 4096
_serving = threading.local()


class Question(NamedTuple):
    """May `reader` read the blocks under this lease, as it knows them?"""

    host: str
    port: int
    lease: str
    reader: str
    seal: str


Answer = Callable[[str, str, str], bool]


@contextmanager
def serving(answer: Answer) -> Iterator[None]:
    """Sockets opened in this thread by a function wrapped by `answering` answer questions."""
    _serving.answer = answer
    try:
        yield
    finally:
        del _serving.answer


def answering(open_socket: Any) -> Any:
    """`open_socket(kind, path)` is vLLM's context manager that gives the handshake listener its socket."""
    if hasattr(open_socket, "pd_connector_stock"):
        return open_socket

    @contextmanager
    def opened(*args: Any, **kwargs: Any) -> Iterator[Any]:
        answer = getattr(_serving, "answer", None)
        with open_socket(*args, **kwargs) as socket:
            yield socket if answer is None else AnsweringSocket(socket, answer)

    opened.pd_connector_stock = open_socket  # type: ignore[attr-defined]
    return opened


class AnsweringSocket:
    """The listener's socket, which keeps questions to itself and passes on everything else."""

    def __init__(self, socket: Any, answer: Answer) -> None:
        self._socket = socket
        self._answer = answer

    def recv_multipart(self, *args: Any, **kwargs: Any) -> list[bytes]:
        """The next message that is no question."""
        while True:
            frames: list[bytes] = self._socket.recv_multipart(*args, **kwargs)
            if len(frames) == 3 and not frames[2].startswith(MARK):
                return frames
            if len(frames) == 3:
                self._socket.send_multipart((frames[0], b"", b"1" if self._asked(frames[2]) else b"0"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def _asked(self, message: bytes) -> bool:
        try:
            words = json.loads(message[len(MARK) : _MOST_BYTES])
        except (ValueError, RecursionError):
            return False
        well_formed = isinstance(words, list) and len(words) == 3 and all(isinstance(w, str) for w in words)
        return well_formed and self._answer(*words)


class Asker:
    """Asks in the background; several at once, so that a dead engine holds up no question to others."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="pd-connector-ask")
        self._of_thread = threading.local()

    def ask(self, question: Question) -> "Future[bool]":
        """Answers at once for a question without a lease: its engine may not know questions."""
        return self._pool.submit(self._ask, question) if question.lease else _no()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, question: Question) -> bool:
        import zmq

        sockets: dict[tuple[str, int], Any] = self._of_thread.__dict__.setdefault("sockets", {})
        place = (question.host, question.port)
        socket = sockets.pop(place, None) or zmq.Context.instance().socket(zmq.REQ)
        try:
            if not socket.LAST_ENDPOINT:
                _connect(socket, *place)
            socket.send(MARK + json.dumps([question.lease, question.reader, question.seal]).encode())
            granted: bool = socket.recv() == b"1"
        except zmq.ZMQError:
            socket.close(linger=0)
            return False
        sockets[place] = socket
        return granted


def _no() -> "Future[bool]":
    answer: Future[bool] = Future()
    answer.set_result(False)
    return answer


def _connect(socket: Any, host: str, port: int) -> None:
    import zmq

    for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
        socket.setsockopt(option, int(ANSWER_SECONDS * 1000))
    socket.setsockopt(zmq.IPV6, ":" in host)
    socket.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
