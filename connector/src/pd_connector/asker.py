"""Asking other engines whether their blocks may be read.

`sidechannel` has the question, and who answers it.
"""

import contextlib
import math
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from queue import SimpleQueue

from pd_connector.sidechannel import Question

ANSWER_SECONDS = 2.0
"""An engine that does not answer within this time is taken for dead."""
IDLE_SECONDS = 60.0
"""A connection over which nothing was asked for so long is closed."""
MOST_LINES = 128
"""Connections at the same time; there are not so many engines, and ZeroMQ has a bound as well."""
_MOST_AT_ONCE = 64
"""Answers taken from one engine before the others have their turn."""


class Asker:
    """Asks in a thread of its own, all questions at once: a dead engine holds up none but those to itself."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Question, Future[bool]]] = SimpleQueue()
        self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self, question: Question) -> "Future[bool]":
        """Answers at once for a question without a lease: its engine may not know questions."""
        answer: Future[bool] = Future()
        with self._lock:
            if not question.lease or self._closed:
                answer.set_result(False)
                return answer
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="pd-connector-ask", daemon=True)
                self._thread.start()
            self._asked.put((question, answer))
            self._ring()
        return answer

    def close(self) -> None:
        """Every question that is still open gets a no."""
        with self._lock:
            self._closed = True
            self._ring()
            thread = self._thread
        if thread is not None:
            thread.join(ANSWER_SECONDS)

    def _ring(self) -> None:
        # A full pipe rings already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell[1], b"!")

    def _serve(self) -> None:
        lines = Lines()
        try:
            while not self._closed:
                lines.wait(self._bell[0])
                while not self._asked.empty():
                    lines.send(*self._asked.get())
        finally:
            # A question that nobody answers would be waited for without end.
            with self._lock:
                self._thread = None
                lines.close()
                while not self._asked.empty():
                    self._asked.get()[1].set_result(False)


class Line:
    """The connection to one engine, and the questions on it, the oldest first."""

    def __init__(self, host: str) -> None:
        import zmq

        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IPV6, ":" in host)
        self.open: dict[bytes, tuple[float, Future[bool]]] = {}
        self._asked = 0
        self._last = time.monotonic()

    def connect(self, host: str, port: int) -> None:
        """Raises zmq.ZMQError."""
        self.socket.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")

    def send(self, question: Question, answer: "Future[bool]") -> None:
        """Raises zmq.ZMQError."""
        import zmq

        self._asked += 1
        number = str(self._asked).encode()
        self._last = time.monotonic()
        self.open[number] = self._last + ANSWER_SECONDS, answer
        # The number comes back with the answer: an engine that was restarted has lost what was asked before.
        self.socket.send_multipart((number, b"", question.message()), zmq.NOBLOCK)

    def receive(self) -> None:
        """Raises zmq.ZMQError."""
        import zmq

        for _ in range(_MOST_AT_ONCE):
            if not self.socket.poll(0):
                return
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            if frames[0] in self.open:
                self.open.pop(frames[0])[1].set_result(frames[-1] == b"1")

    def deadline(self) -> float:
        """When the engine will have been silent, or the line unused, for too long."""
        return next(iter(self.open.values()))[0] if self.open else self._last + IDLE_SECONDS

    def hang_up(self) -> None:
        self.socket.close(linger=0)
        for _, answer in self.open.values():
            answer.set_result(False)
        self.open.clear()


class Lines:
    """The lines to all engines, the longest unused first; one whose engine is silent for too long, that is
    broken or not used any more is hung up."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[str, int], Line] = OrderedDict()

    def wait(self, bell: int) -> None:
        """Until the bell rings, an answer comes or an engine was silent for too long."""
        import zmq

        poller = zmq.Poller()
        for socket in (bell, *(line.socket for line in self._lines.values())):
            poller.register(socket, zmq.POLLIN)
        soonest = min((line.deadline() for line in self._lines.values()), default=math.inf)
        poller.poll(None if soonest == math.inf else max(0, soonest - time.monotonic()) * 1000 + 1)
        # It need not have rung.
        with contextlib.suppress(BlockingIOError):
            os.read(bell, 4096)
        for place, line in list(self._lines.items()):
            try:
                line.receive()
            except zmq.ZMQError:
                self._hang_up(place)
                continue
            if line.deadline() <= time.monotonic():
                self._hang_up(place)

    def send(self, question: Question, answer: "Future[bool]") -> None:
        import zmq

        place = (question.host, question.port)
        try:
            if place not in self._lines:
                if len(self._lines) >= MOST_LINES:
                    self._hang_up(next(iter(self._lines)))
                self._lines[place] = Line(question.host)
                self._lines[place].connect(*place)
            self._lines.move_to_end(place)
            self._lines[place].send(question, answer)
        except (zmq.ZMQError, ValueError):
            # ValueError: no socket takes such a name.
            self._hang_up(place)
            if not answer.done():
                answer.set_result(False)

    def __len__(self) -> int:
        return len(self._lines)

    def close(self) -> None:
        for place in list(self._lines):
            self._hang_up(place)

    def _hang_up(self, place: tuple[str, int]) -> None:
        line = self._lines.pop(place, None)
        if line is not None:
            line.hang_up()
