"""The gate before a worker's reads, with a worker in plain Python."""

import queue
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pd_connector import reads
from pd_connector.peers import forget_older_starts, watch_handshakes
from pd_connector.reads import Gate, set_deadlines
from pd_connector.sidechannel import Question
from pd_connector.versions import RefusedError

QUESTION = Question("h", 1, "lease", "reader", "seal")


@dataclass
class Worker:
    """As vLLM's until 0.31."""

    _recving_metadata: dict[str, Any] = field(default_factory=dict)
    _reqs_to_send: dict[str, float] = field(default_factory=dict)
    _remote_agents: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    read: list[str] = field(default_factory=list)

    def _handle_failed_transfer(self, request: str, handle: int | None) -> None:
        assert request in self._recving_metadata
        self.failed.append(request)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> set[str]:
        return self.done

    def _read_blocks_for_req(self, request: str, meta: Any) -> None:
        self.read.append(request)

    def _cleanup_remote_engine(self, engine: str) -> None:
        del self._remote_agents[engine]


class Asked:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.answers: list[Future[bool]] = []

    def ask(self, question: Question) -> "Future[bool]":
        self.answers.append(Future())
        return self.answers[-1]


def meta(*blocks: int, engine: str = "d+00000001", host: str = "h", port: int = 1) -> SimpleNamespace:
    remote = SimpleNamespace(engine_id=engine, blocks_expiry_time=5.0, host=host, port=port)
    return SimpleNamespace(local_block_ids=(list(blocks),), remote=remote)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def gate(worker: Worker, asked: Asked) -> Gate:
    return Gate(worker, asked, {"d+00000001": ("h", 1)})  # type: ignore[arg-type]


def test_a_read_waits_until_its_holder_agrees(gate: Gate, worker: Worker, asked: Asked) -> None:
    receive: dict[str, Any] = {"r": meta(1, 2), "other": meta(3)}
    gate.admit(receive, {"r": QUESTION})
    assert list(receive) == ["other"]
    asked.answers[0].set_result(True)
    receive = {}
    gate.admit(receive, {})
    assert list(receive) == ["r"]
    # The lease is alive; how old the handle is does not matter.
    assert receive["r"].remote.blocks_expiry_time is None
    assert worker.failed == []
    receive = {}
    gate.admit(receive, {})
    assert receive == {}


@pytest.mark.parametrize("how", ["no", "error"])
def test_a_refused_read_has_failed(gate: Gate, worker: Worker, asked: Asked, how: str) -> None:
    gate.admit({"r": meta(1)}, {"r": QUESTION})
    if how == "no":
        asked.answers[0].set_result(False)
    else:
        asked.answers[0].set_exception(OSError("gone"))
    receive: dict[str, Any] = {}
    gate.admit(receive, {})
    assert receive == {}
    assert worker.failed == ["r"]


def test_from_0_32_on_failures_go_through_the_workers_queue(asked: Asked) -> None:
    worker: Any = Worker()
    worker._recv_failures, worker._failed_recv_reqs = set(), queue.Queue()
    gate = Gate(worker, asked, {})  # type: ignore[arg-type]
    gate.admit({"r": meta(1)}, {"r": QUESTION})
    asked.answers[0].set_result(False)
    gate.admit({}, {})
    assert worker._failed_recv_reqs.get_nowait() == "r"
    assert worker.failed == []


def test_a_holder_is_told_to_let_go_only_if_it_agrees(gate: Gate, worker: Worker, asked: Asked) -> None:
    """Its blocks may be read by another request with the same handle."""
    for granted in (True, False):
        receive: dict[str, Any] = {"r": meta()}
        gate.admit(receive, {"r": QUESTION})
        asked.answers[-1].set_result(granted)
        gate.admit(receive, {})
        assert list(receive) == ["r"] * granted
    assert worker.failed == []


def test_a_read_that_outlived_its_protection_has_failed(
    gate: Gate, worker: Worker, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("quick", "slow"):
        gate.admit({name: meta(1)}, {name: QUESTION})
        asked.answers[-1].set_result(True)
        gate.admit({}, {})
        worker._recving_metadata[name] = meta(1)
    worker.done = {"quick"}
    assert worker._pop_done_transfers({}) == {"quick"}
    now = reads.time.monotonic()
    monkeypatch.setattr(reads, "time", SimpleNamespace(monotonic=lambda: now + 31))
    worker.done = {"slow"}
    assert worker._pop_done_transfers({}) == {"slow"}
    assert worker.failed == ["slow"]


def test_deadlines_only_grow_until_they_are_nought() -> None:
    worker = Worker(_reqs_to_send={"a": 1e12, "b": 5.0, "c": 6.0})
    set_deadlines(worker, {"a": 100.0, "b": 1e13, "c": 0.0, "unknown": 7.0}, 0.0)
    assert worker._reqs_to_send == {"c": 0.0, "a": 1e12, "b": 1e13}
    assert list(worker._reqs_to_send) == ["c", "a", "b"]


def test_a_deadline_of_another_machines_clock_is_moved_to_ours() -> None:
    worker = Worker(_reqs_to_send={"a": 0.5})
    now = reads.time.perf_counter()
    set_deadlines(worker, {"a": 1_000_030.0}, 1_000_000.0)
    assert worker._reqs_to_send["a"] == pytest.approx(now + 30, abs=1)


def test_earlier_starts_of_an_engine_are_forgotten_when_nobody_reads_from_them() -> None:
    worker = Worker(
        _remote_agents=dict.fromkeys(["d+00000001", "d+00000002", "e+00000003", "d+00000004_dp1"])
    )
    worker._recving_metadata = {"r": meta(engine="d+00000002")}
    assert forget_older_starts(worker, "d+00000009") == ["d+00000001"]
    assert sorted(worker._remote_agents) == ["d+00000002", "d+00000004_dp1", "e+00000003"]
    assert forget_older_starts(worker, "e+00000003") == []


def handshake_of(worker: Any, how: BaseException | None = None) -> None:
    """vLLM's, which fails as it is told to."""

    def handshake(host: str, port: int, tp: int, expected_engine_id: str) -> str:
        if how is not None:
            raise how
        return "agents"

    worker._nixl_handshake = handshake


@pytest.mark.parametrize("known", [False, True])
def test_what_a_failed_handshake_made_of_an_engine_is_forgotten(known: bool) -> None:
    worker: Any = Worker(_remote_agents={"d": 1} if known else {})
    worker.tp_mappings = {"d": "three ranks", "e": "one rank"}
    left: list[str] = []
    worker.transfer_topo = SimpleNamespace(unregister_remote_engine=left.append)
    handshake_of(worker, AssertionError("not three ranks"))
    places = watch_handshakes(worker)
    with pytest.raises(AssertionError, match="not three ranks"):
        worker._nixl_handshake("h", 1, 3, "d")
    assert ("d" in worker.tp_mappings) == known
    assert left == ([] if known else ["d"])
    assert "e" in worker.tp_mappings
    assert places == {}


def test_a_handshake_says_where_an_engine_is() -> None:
    worker: Any = Worker()
    handshake_of(worker)
    places = watch_handshakes(worker)
    assert worker._nixl_handshake("h", 1, 1, "d") == "agents"
    assert worker._nixl_handshake("i", port=2, tp=1, expected_engine_id="e") == "agents"
    assert places == {"d": ("h", 1), "e": ("i", 2)}
    worker._nixl_handshake("h", 3, 1, "d")
    assert places["d"] == ("h", 3)


def test_a_handshake_of_another_shape_is_refused_at_start() -> None:
    worker: Any = Worker()
    worker._nixl_handshake = lambda host, engine: None
    with pytest.raises(RefusedError, match="expected_engine_id, port"):
        watch_handshakes(worker)


@pytest.mark.parametrize(("host", "port"), [("h", 2), ("other", 1), ("", 1)])
def test_a_known_engine_is_read_only_where_it_was_asked(
    gate: Gate, worker: Any, host: str, port: int
) -> None:
    """Whoever answered elsewhere has promised nothing for it."""
    worker._remote_agents["d+00000001"] = "agents"
    worker._read_blocks_for_req("true", meta(1, 2))
    assert (worker.read, worker.failed) == (["true"], [])
    worker._read_blocks_for_req("forged", meta(1, 2, host=host, port=port))
    assert (worker.read, worker.failed) == (["true"], ["forged"])
    # Telling the engine to let go of blocks is as bad as reading them.
    worker._read_blocks_for_req("release", meta(host=host, port=port))
    assert (worker.read, worker.failed) == (["true"], ["forged"])


def test_an_engine_that_is_not_known_is_greeted_where_the_handle_says(gate: Gate, worker: Any) -> None:
    """The handshake itself checks who is there."""
    worker._read_blocks_for_req("new", meta(1, engine="e+00000002", host="elsewhere"))
    assert worker.read == ["new"]


def test_a_request_that_only_lets_go_leaves_nothing_behind(gate: Gate, worker: Any) -> None:
    """vLLM until 0.31 keeps its note of it, and an earlier start of the engine would be taken for used."""
    worker._remote_agents["d+00000001"] = "agents"
    for request, done in (("there", meta()), ("elsewhere", meta(port=9)), ("reads", meta(1))):
        worker._recving_metadata[request] = done
        worker._read_blocks_for_req(request, done)
    assert list(worker._recving_metadata) == ["reads"]
    assert worker.read == ["there", "reads"]
    assert worker.failed == []


def test_the_failed_handshake_of_such_a_request_is_no_failed_read(gate: Gate, worker: Any) -> None:
    worker._recving_metadata = {"lets go": meta(), "reads": meta(1)}
    for request in ("lets go", "reads"):
        worker._handle_failed_transfer(request, None)
    assert worker.failed == ["reads"]
    assert list(worker._recving_metadata) == ["reads"]
