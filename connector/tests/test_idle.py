"""When an engine sleeps, and for how long; its loop in plain Python."""

import queue
from logging import getLogger
from types import SimpleNamespace
from typing import Any

import pytest

from pd_connector import idle
from pd_connector.idle import FIRST_SECONDS, LONGEST_SECONDS, Naps, WorkerRest


def test_naps_grow_to_a_second_and_begin_anew() -> None:
    naps = Naps()
    lengths = [naps.next(None) for _ in range(12)]
    assert lengths[0] == FIRST_SECONDS
    assert lengths == sorted(lengths)
    assert lengths[-1] == LONGEST_SECONDS
    naps.wake()
    assert naps.next(None) == FIRST_SECONDS


def test_a_nap_ends_with_the_next_lease() -> None:
    naps = Naps()
    for _ in range(10):
        naps.next(None)
    assert naps.next(0.25) == 0.25
    assert naps.next(-3.0) == pytest.approx(0.001)


class Connector:
    def __init__(self) -> None:
        self.naps, self.resting = Naps(), False
        self.busy, self.gone = False, False

    def only_holds(self) -> bool:
        return not self.busy

    def seconds_to_next_end(self) -> float | None:
        return None

    def let_go_of_all(self) -> None:
        self.gone = True


class Core:
    """Counts its steps; holds leases and has no request."""

    def __init__(self, connector: Any) -> None:
        self.connector, self.unfinished, self.steps, self.running = connector, False, 0, True
        self.input_queue: queue.Queue[Any] = queue.Queue()
        self.handled: list[Any] = []
        self.executed = False
        self.scheduler = SimpleNamespace(
            get_kv_connector=lambda: self.connector, has_unfinished_requests=lambda: self.unfinished
        )

    def is_running(self) -> bool:
        return self.running

    def _process_engine_step(self) -> bool:
        self.steps += 1
        return self.executed

    def _handle_client_request(self, *request: Any) -> None:
        self.handled.append(request)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Fresh(Core):
        def _process_engine_step(self) -> bool:
            return Core._process_engine_step(self)

    assert idle.install(Fresh, getLogger("test"))
    assert idle.install(Fresh, getLogger("test"))
    return Fresh(Connector())


def test_the_workers_learn_of_the_rest_before_the_engine_sleeps(core: Any) -> None:
    core._process_engine_step()
    assert core.connector.resting
    assert core.connector.naps.next(None) == FIRST_SECONDS, "it has not slept"


def test_a_request_wakes_it(core: Any) -> None:
    core._process_engine_step()
    core.input_queue.put(("ADD", 1))
    core._process_engine_step()
    assert core.handled == [], "the loop takes it itself"
    assert not core.connector.resting


def test_it_does_not_sleep_with_work_at_hand(core: Any) -> None:
    core._process_engine_step()
    for name in ("unfinished", "executed"):
        setattr(core, name, True)
        core._process_engine_step()
        assert not core.connector.resting
        setattr(core, name, False)
    core.connector.busy = True
    core._process_engine_step()
    assert not core.connector.resting


def test_a_drain_lets_go_of_the_leases(core: Any) -> None:
    core.running = False
    core._process_engine_step()
    assert core.connector.gone


def test_another_connector_and_a_data_parallel_engine_are_left_alone(core: Any) -> None:
    core.connector = object()
    core._process_engine_step()

    class DataParallel(type(core)):  # type: ignore[misc]
        pass

    other = DataParallel(Connector())
    other._process_engine_step()
    assert other.steps == 1
    assert not other.connector.resting


def test_an_unknown_loop_is_left_alone() -> None:
    assert not idle.install(object, getLogger("test"))


def test_a_resting_worker_waits_for_its_notice_at_once_and_not_for_long() -> None:
    """A lost notice costs a moment, not vLLM's five seconds."""
    waited: list[tuple[float, int | None]] = []

    class Condition:
        busy_loop_s = 1.0

        def __init__(self) -> None:
            self.last_read = 1e12

        def wait(self, timeout_ms: int | None = None) -> None:
            waited.append((self.last_read, timeout_ms))

    rest = WorkerRest()
    rest.install(Condition)
    rest.install(Condition)
    Condition().wait()
    rest.resting = True
    for timeout_ms in (5, 5000, None):
        Condition().wait(timeout_ms)
    assert waited[0] == (1e12, None)
    assert all(last_read < 1e12 for last_read, _ in waited[1:])
    assert [timeout_ms for _, timeout_ms in waited[1:]] == [5, idle.RECHECK_MS, idle.RECHECK_MS]
