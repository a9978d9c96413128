"""An engine whose only work is to hold blocks sleeps, instead of stepping a thousand times a second.

vLLM steps as long as finished requests wait for their blocks to be freed. Here it waits for its input
instead, and steps now and then to hear that blocks were read, and in time for the next lease that ends.
Between these steps the workers wait for a notice rather than watch their queue.
"""

import queue
import time
from logging import Logger
from typing import Any

FIRST_SECONDS = 0.005
"""The first sleep; each is twice the one before, for a reader usually comes soon or not at all."""
LONGEST_SECONDS = 1.0
RECHECK_MS = 20
"""A notice to a resting worker can be lost (vLLM drops notices rather than queue them), and vLLM would look
into the queue again only after five seconds."""


class Naps:
    """How long to sleep next."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def wake(self) -> None:
        """There was work: the reader of its blocks may come at once."""
        self._next = FIRST_SECONDS

    def next(self, until: float | None) -> float:
        """Seconds, `until` the next lease's end at the latest."""
        nap, self._next = self._next, min(self._next * 2, LONGEST_SECONDS)
        return nap if until is None else min(nap, max(until, 0.001))


def install(core: Any, logger: Logger) -> bool:
    """Wrap a step of the class EngineCoreProc. May be called again; False where the step is unknown."""
    stock = getattr(core, "_process_engine_step", None)
    if hasattr(stock, "pd_connector_stock"):
        return True
    if stock is None or not hasattr(core, "_handle_client_request"):
        logger.warning("pd-connector: this vLLM's engine loop is not known; idle engines do not sleep")
        return False

    def process_engine_step(self: Any) -> Any:
        executed = stock(self)
        # The other ranks of a data-parallel engine wait for each other's steps.
        if type(self) is core:
            _rest(self, executed)
        return executed

    process_engine_step.pd_connector_stock = stock  # type: ignore[attr-defined]
    core._process_engine_step = process_engine_step
    return True


def _rest(engine: Any, executed: Any) -> None:
    scheduler = engine.scheduler
    connector = scheduler.get_kv_connector()
    naps: Naps | None = getattr(connector, "naps", None)
    if naps is None:
        return
    if executed or scheduler.has_unfinished_requests() or not engine.input_queue.empty():
        naps.wake()
        connector.resting = False
        return
    if not engine.is_running():
        # A shutdown that drains waits for the last block to be free.
        connector.let_go_of_all()
    if getattr(engine, "batch_queue", None) or not connector.only_holds():
        return
    if not connector.resting:
        # The workers learn it with the next step.
        connector.resting = True
        return
    try:
        request = engine.input_queue.get(timeout=naps.next(connector.seconds_to_next_end()))
    except queue.Empty:
        return
    naps.wake()
    connector.resting = False
    engine._handle_client_request(*request)


class WorkerRest:
    """Makes a reader of vLLM's shared-memory queue sleep at once while the engine rests.

    Normally it watches the queue for a second after each message: for ever, at a step per second.
    """

    def __init__(self) -> None:
        self.resting = False

    def install(self, condition: Any) -> None:
        """`condition` is the class SpinCondition, in the worker's process. May be called again."""
        stock = getattr(condition, "wait", None)
        if stock is None or hasattr(stock, "pd_connector_stock"):
            return

        def wait(waiting: Any, timeout_ms: int | None = None) -> Any:
            if self.resting and waiting.busy_loop_s:
                waiting.last_read = time.monotonic() - waiting.busy_loop_s - 1
                timeout_ms = RECHECK_MS if timeout_ms is None else min(timeout_ms, RECHECK_MS)
            return stock(waiting, timeout_ms)

        wait.pd_connector_stock = stock  # type: ignore[attr-defined]
        condition.wait = wait


worker_rest = WorkerRest()
