"""Questions and answers between engines, over real sockets."""

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import pytest

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

from pd_connector import asker as asker_module  # noqa: E402
from pd_connector.asker import ANSWER_SECONDS, MOST_LINES, Asker, Line, Lines  # noqa: E402
from pd_connector.sidechannel import MARK, AnsweringSocket, Question, answering, serving  # noqa: E402


@contextlib.contextmanager
def stock_socket(kind: Any, path: str) -> Iterator[Any]:
    """As vLLM opens its listener's."""
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.bind(path)
        yield socket


RANKS = {(0, 0): "metadata", (0, 1): "more", 2: "of vLLM until 0.23"}


def greeting(*parts: object) -> bytes:
    """A handshake as vLLM sends it: a word and a rank."""
    return bytes(msgspec.msgpack.encode(parts))


class Holder:
    """An engine's listener: questions are answered beside whatever else comes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.passed: list[object] = []
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "Holder":
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.connect(f"tcp://127.0.0.1:{self.port}")
            socket.send(greeting(b"end", 0, 0))
            assert socket.recv() == b"stock"
        self._thread.join(5)

    def _answer(self, lease: str, reader: str, seal: str) -> bool:
        self.asked.append((lease, reader, seal))
        return lease == "good"

    def _listen(self) -> None:
        opener = answering(answering(stock_socket))
        with serving(self._answer, RANKS), opener(zmq.ROUTER, "tcp://127.0.0.1:*") as socket:
            assert isinstance(socket, AnsweringSocket)
            self.port = int(socket.getsockopt(zmq.LAST_ENDPOINT).rsplit(b":", 1)[1])
            self._ready.set()
            while [b"end", 0, 0] not in self.passed:
                identity, _, message = socket.recv_multipart()
                self.passed.append(msgspec.msgpack.decode(message))
                socket.send_multipart((identity, b"", b"stock"))


@pytest.fixture
def holder() -> Iterator[Holder]:
    with Holder() as started:
        yield started


@pytest.fixture
def asker() -> Iterator[Asker]:
    made = Asker()
    yield made
    made.close()


def test_a_question_gets_the_books_answer(holder: Holder, asker: Asker) -> None:
    answers = [
        asker.ask(Question("127.0.0.1", holder.port, lease, "r", "s")) for lease in ("good", "bad", "good")
    ]
    assert [answer.result(5) for answer in answers] == [True, False, True]
    assert sorted(holder.asked) == [("bad", "r", "s"), ("good", "r", "s"), ("good", "r", "s")]


def test_an_engine_that_is_gone_is_a_no(asker: Asker) -> None:
    with zmq.Context() as context, context.socket(zmq.REP) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    hosts = ("127.0.0.1", "no such host", "\ud800", "[", "::1")
    answers = [asker.ask(Question(host, port, "good", "r", "s")) for host in hosts]
    assert [answer.result(10) for answer in answers] == [False] * len(hosts)


@contextlib.contextmanager
def silent_engine() -> Iterator[int]:
    """The port of one that takes every question and answers none."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        yield socket.bind_to_random_port("tcp://127.0.0.1")


def test_a_silent_engine_holds_up_no_question_to_another_and_all_its_own_end_together(
    holder: Holder, asker: Asker
) -> None:
    with silent_engine() as port:
        lost = [asker.ask(Question("127.0.0.1", port, "good", f"r{number}", "s")) for number in range(100)]
        assert asker.ask(Question("127.0.0.1", holder.port, "good", "r", "s")).result(5)
        assert not any(answer.done() for answer in lost)
        assert wait(lost, 10, FIRST_COMPLETED).done
        assert wait(lost, ANSWER_SECONDS / 2).not_done == set()
        assert not any(answer.result() for answer in lost)


def test_an_answer_is_that_of_its_own_question(asker: Asker) -> None:
    """Also when earlier ones are never answered, as by an engine that was restarted, or late."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        answers = [asker.ask(Question("127.0.0.1", port, "good", f"r{number}", "s")) for number in range(3)]
        asked = [socket.recv_multipart() for _ in answers]
        socket.send_multipart([b"nobody", b"", b"1"])
        socket.send_multipart([*asked[0][:1], b"?", b"", b"1"])
        socket.send_multipart([*asked[2][:-1], b"0"])
        assert answers[2].result(5) is False
        socket.send_multipart([*asked[1][:-1], b"1"])
        assert answers[1].result(5) is True
        assert answers[0].result(10) is False


def test_whoever_closes_leaves_no_question_open(asker: Asker) -> None:
    with silent_engine() as port:
        answer = asker.ask(Question("127.0.0.1", port, "good", "r", "s"))
        asker.close()
        assert not answer.result(0)
        assert not asker.ask(Question("127.0.0.1", port, "good", "r", "s")).result(0)


@pytest.mark.parametrize("message", [b"", b"[", b'"text"', b"[1,2,3]", b'["good"]', b"[" * 5000, b"\xff"])
def test_a_malformed_question_is_a_no(holder: Holder, message: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{holder.port}")
        socket.send(MARK + message)
        assert socket.recv() == b"0"
    assert holder.asked == []


def test_frames_of_another_shape_are_dropped(holder: Holder, asker: Asker) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{holder.port}")
        socket.send_multipart((b"", b"a", b"b", b"c"))
        socket.send(b"alone")
        assert asker.ask(Question("127.0.0.1", holder.port, "good", "r", "s")).result(5)
    assert holder.passed == []


def test_a_socket_of_another_thread_is_left_alone() -> None:
    with answering(stock_socket)(zmq.ROUTER, "tcp://127.0.0.1:*") as socket:
        assert isinstance(socket, zmq.Socket)


def test_without_a_lease_nobody_is_asked(holder: Holder, asker: Asker) -> None:
    assert not asker.ask(Question("127.0.0.1", holder.port, "", "r", "s")).result(0)
    assert holder.asked == []


@pytest.mark.parametrize("message", [greeting(b"meta", 0, 1), greeting(b"meta", 2)])
def test_a_handshake_is_the_listeners(holder: Holder, message: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{holder.port}")
        socket.send(message)
        assert socket.recv() == b"stock"
    assert holder.passed == [msgspec.msgpack.decode(message)]


ODD = {
    "empty": b"",
    "no-msgpack": b"\xc1\xff",
    "cut-off": greeting(b"meta", 0, 0)[:-1],
    "number": msgspec.msgpack.encode(5),
    "nothing": msgspec.msgpack.encode(None),
    "no-rank": greeting(b"meta"),
    "unknown-rank": greeting(b"meta", 0, 7),
    "one-rank-too-many": greeting(b"meta", 0, 0, 0),
    "rank-of-a-list": greeting(b"meta", [0], 0),
    "rank-of-an-object": greeting(b"meta", {"a": 1}),
    "no-word": greeting(5, 0, 0),
    "object": msgspec.msgpack.encode({"a": 1, "b": 2, "c": 3}),
    "deep": b"\x91" * 100_000,
}


@pytest.mark.parametrize("case", ODD)
def test_what_would_end_vllms_listener_is_dropped(holder: Holder, asker: Asker, case: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{holder.port}")
        socket.send_multipart((b"", ODD[case]))
        assert asker.ask(Question("127.0.0.1", holder.port, "good", "r", "s")).result(5)
        assert not socket.poll(100)
    assert holder.passed == []


def test_lines_that_nobody_uses_are_closed(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a socket, of which ZeroMQ has a bounded number."""
    monkeypatch.setattr(asker_module, "IDLE_SECONDS", 0.2)
    lines, bell = Lines(), os.pipe2(os.O_NONBLOCK)[0]
    for _ in range(2):
        answer: Future[bool] = Future()
        lines.send(Question("127.0.0.1", holder.port, "good", "r", "s"), answer)
        while not answer.done():
            lines.wait(bell)
        assert answer.result()
        assert len(lines) == 1
        lines.wait(bell)
        assert len(lines) == 0


def test_there_are_so_many_lines_at_most() -> None:
    """The longest unused goes; its questions get a no at once."""
    lines = Lines()
    answers: list[Future[bool]] = [Future() for _ in range(MOST_LINES + 1)]
    with silent_engine() as port:
        for number, answer in enumerate(answers):
            # All are this machine.
            lines.send(Question(f"127.0.0.{number + 1}", port, "good", "r", "s"), answer)
        assert len(lines) == MOST_LINES
        assert answers[0].result(0) is False
        assert not any(answer.done() for answer in answers[1:])
        lines.close()
    assert not any(answer.result(0) for answer in answers)


def test_an_engine_that_talks_without_end_holds_up_nobody() -> None:
    """Its own question is looked at in between, and has its time."""

    class Talker:
        """In place of a socket whose peer is faster than its reader."""

        read = 0

        def poll(self, timeout: int) -> bool:
            return True

        def recv_multipart(self, flags: int) -> list[bytes]:
            self.read += 1
            return [b"no number", b"1"]

    line = Line("127.0.0.1")
    line.socket.close()
    line.socket = talker = Talker()
    line.receive()
    assert 0 < talker.read < 1000
