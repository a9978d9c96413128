"""How many tokens a read must bring to be worth it: `kv_recompute_threshold: auto`.

Everything comes from the engine's own first requests: what its steps cost per token, what a transfer costs
per token, and what a read costs besides (the question, the notice, the next step). Pure: no vLLM.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

ENOUGH = 4
"""Samples of each kind before the first figure."""
_KEPT = 64
_LEAST_TOKENS = 32
"""A smaller step says more of its fixed cost than of its tokens."""
NEVER = 1 << 30
"""Reading costs more per token than computing."""
TRIAL_EVERY = 64
"""Of the reads left out as not worth it one in so many is done all the same, to notice a change."""


@dataclass(frozen=True)
class Transfer:
    """One read by NIXL."""

    seconds: float
    size: int
    descriptors: int


@dataclass
class Calibration:
    """The latest samples, and the break-even that follows."""

    start: int
    """The answer until there are enough samples."""
    _steps: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _reads: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _transfers: deque[Transfer] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _left_out: int = 0

    def computed(self, tokens: int, seconds: float) -> None:
        """A step of so many prompt tokens took so long."""
        if tokens >= _LEAST_TOKENS:
            self._steps.append((tokens, seconds))

    def read(self, tokens: int, seconds: float) -> None:
        """A read of so many tokens took so long, from the decision to the end."""
        self._reads.append((tokens, seconds))

    def transferred(self, transfers: Sequence[Transfer]) -> None:
        self._transfers.extend(transfers)

    @property
    def ready(self) -> bool:
        return min(len(self._steps), len(self._reads), len(self._transfers)) >= ENOUGH

    def tokens(self) -> int:
        """Reads of fewer tokens are not worth it."""
        if not self.ready:
            return self.start
        gain = self._compute_seconds() - self._transfer_seconds()
        return min(max(1, round(self._overhead_seconds() / gain)), NEVER) if gain > 0 else NEVER

    def wanted(self, tokens: int) -> bool:
        """Is a read of so many tokens worth it, or due as a trial?"""
        if tokens >= self.tokens():
            return True
        self._left_out += 1
        return self._left_out % TRIAL_EVERY == 0

    def figures(self) -> dict[str, float]:
        """For the log: milliseconds per token, per MB (2^20 bytes), per descriptor, and besides."""
        size = sum(transfer.size for transfer in self._transfers) / 2**20
        descriptors = sum(transfer.descriptors for transfer in self._transfers)
        seconds = sum(transfer.seconds for transfer in self._transfers)
        return {
            "prefill_ms_per_token": 1000 * self._compute_seconds(),
            "read_ms_per_mb": 1000 * seconds / size if size else 0.0,
            "read_ms_per_descriptor": 1000 * seconds / descriptors if descriptors else 0.0,
            "read_overhead_ms": 1000 * self._overhead_seconds(),
        }

    def _compute_seconds(self) -> float:
        # The median step, so that one step behind other work counts for nothing.
        return median(seconds / tokens for tokens, seconds in self._steps)

    def _transfer_seconds(self) -> float:
        """Per token, of the middle read: the first of a peer is slow beyond measure."""
        middle = median(tokens for tokens, _ in self._reads)
        return median(transfer.seconds for transfer in self._transfers) / middle

    def _overhead_seconds(self) -> float:
        per_token = self._transfer_seconds()
        return max(0.0, median(seconds - tokens * per_token for tokens, seconds in self._reads))


class StepClock:
    """Seconds per step of an engine that schedules a step before the one before it has ended."""

    def __init__(self) -> None:
        self._scheduled: deque[tuple[int, float]] = deque(maxlen=8)
        self._ended = 0.0

    def scheduled(self, tokens: int, now: float) -> None:
        self._scheduled.append((tokens, now))

    def ended(self, now: float) -> tuple[int, float] | None:
        """Tokens and seconds of the step that ended now."""
        if not self._scheduled:
            return None
        tokens, since = self._scheduled.popleft()
        seconds = now - max(since, self._ended)
        self._ended = now
        return tokens, seconds
