"""Feeds `threshold` from what the scheduler sees of its steps and of the workers' reads. Pure: no vLLM."""

import time
from collections.abc import Callable
from typing import Any

from pd_connector.threshold import Calibration, StepClock, Transfer

Log = Callable[..., None]
_TELL_EVERY = 256
"""Reads between two log lines of the figures."""


class ReadMeter:
    """Decides whether a read is worth it, by the engine's own measurements."""

    def __init__(self, start: int, log: Log, clock: Callable[[], float] = time.perf_counter) -> None:
        self.calibration = Calibration(start)
        self._log = log
        self._clock = clock
        self._steps = StepClock()
        self._begun: dict[str, tuple[int, float]] = {}
        self._reads = 0
        self._tell_at = 0

    def step_begins(self, prompt_tokens: int) -> None:
        """Of a step that generates too, the tokens are those of all requests."""
        self._steps.scheduled(prompt_tokens, self._clock())

    def read_begins(self, request: str, tokens: int) -> None:
        self._begun[request] = (tokens, self._clock())

    def forget(self, request: str) -> None:
        """The request has ended; a read of it that failed or was left tells nothing."""
        self._begun.pop(request, None)

    def step_ends(self, output: Any) -> None:
        """`output` is the workers' KVConnectorOutput of the step."""
        now = self._clock()
        step = self._steps.ended(now)
        if step is not None:
            self.calibration.computed(*step)
        self.calibration.transferred(_transfers(output))
        failed = bool(getattr(output, "invalid_block_ids", None) or getattr(output, "failed_recving", None))
        for request in output.finished_recving or ():
            begun = self._begun.pop(request, None)
            if begun is not None and not failed:
                self.calibration.read(begun[0], now - begun[1])
                self._reads += 1
        if self.calibration.ready and self._reads >= self._tell_at:
            self._tell_at = self._reads + _TELL_EVERY
            self._tell()

    def _tell(self) -> None:
        figures = " ".join(f"{name}={value:.4g}" for name, value in self.calibration.figures().items())
        self._log("pd-connector: kv_recompute_threshold=%d tokens %s", self.calibration.tokens(), figures)


def _transfers(output: Any) -> list[Transfer]:
    data = getattr(getattr(output, "kv_connector_stats", None), "data", None) or {}
    names = ("transfer_duration", "bytes_transferred", "num_descriptors")
    columns = [data.get(name) or () for name in names]
    return [Transfer(float(s), int(b), int(d)) for s, b, d in zip(*columns, strict=False)]
