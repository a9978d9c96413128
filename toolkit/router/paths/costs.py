"""What the paths were measured to cost, by the medians of the latest turns. Times are milliseconds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from toolkit.router.paths.choice import Path

LATEST = 64
MEASURED_FROM = 3
"""Fewer observations say nothing: the first read between two engines also pays for their handshake."""
PROBE_EVERY = 64
"""Of the turns for which a path was measured to be too slow, every so manieth takes it all the same."""
UNMEASURED_TOKENS_PER_BYTE = 0.25
LEAST_TOKENS_PER_BYTE = 1 / 16
"""No text has fewer; images in a history do, and what is added to them may be text."""
_CHANGED = 2.0
_REFIT_EVERY = 8


class Line:
    """A cost that grows with a count: `fixed + each * count`, through the medians of the latest observations.

    Three observations in a row that all cost more than twice (or less than half) of what the earlier ones let
    expect are a change, not chance: the earlier ones are forgotten. Probes could not outvote them otherwise.
    """

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=LATEST)
        self._strays: deque[float] = deque(maxlen=MEASURED_FROM)
        self._line: tuple[float, float] | None = None
        self._unfitted = 0

    def observe(self, count: float, cost: float) -> None:
        """One measurement; a count of nothing tells nothing."""
        if count <= 0 or cost < 0:
            return
        expected = self.at(count)
        if expected:
            self._strays.append(cost / expected)
        self._latest.append((count, cost))
        self._unfitted += 1
        if len(self._strays) == MEASURED_FROM and (
            min(self._strays) > _CHANGED or max(self._strays) < 1 / _CHANGED
        ):
            self._latest = deque(list(self._latest)[-MEASURED_FROM:], maxlen=LATEST)
            self._strays.clear()
            self._line = None
        if self._line is None or self._unfitted >= min(_REFIT_EVERY, len(self._latest) // 2):
            self._line = _fit(self._latest) if len(self._latest) >= MEASURED_FROM else None
            self._unfitted = 0

    def at(self, count: float) -> float | None:
        """What so many cost, or None where too little was measured."""
        return None if self._line is None else self._line[0] + self._line[1] * count

    @property
    def each(self) -> float | None:
        """What one more costs."""
        return None if self._line is None else self._line[1]


class Costs:
    """The measured costs of one router's engines.

    What is compared is the time to the first token: on prefill, and on decode after it or by itself.
    """

    def __init__(self) -> None:
        self._prefill = Line()
        self._read = Line()
        self._pull = Line()
        self._local = Line()
        self._tokens_per_byte: deque[float] = deque(maxlen=LATEST)
        self._rate = UNMEASURED_TOKENS_PER_BYTE
        self._unrated = 0
        self._declined: Counter[Path] = Counter()

    def observe_prefill(self, ms: float, *, prompt: int) -> None:
        """A prefill leg that was offered nothing to read."""
        self._prefill.observe(prompt, ms)

    def observe_readback(self, ms: float, *, prompt: int, held: int, read: int | None = None) -> None:
        """A prefill leg that was offered so many tokens, whether or not it read them all.

        read: how many it did read; None: not told. Of a read that brought nothing only a long wait tells
        something: prefill computed the prompt, which may take longer or shorter than expected.
        """
        computing = (self._prefill.each or 0.0) * max(0, prompt - (held if read is None else read))
        waited = max(0.0, ms - computing)
        if read == 0 and (not computing or waited < computing):
            return
        self._read.observe(read or held, waited)

    def observe_pull(self, ms: float, *, prompt: int) -> None:
        """From decode's request to its first token, after a prefill leg; known of streams only."""
        self._pull.observe(prompt, ms)

    def observe_local(self, ms: float, *, suffix: int) -> None:
        """From decode's request to its first token, where decode took the turn by itself."""
        self._local.observe(suffix, ms)

    def observe_prompt(self, tokens: int, *, history_bytes: int) -> None:
        """An engine told the length of a prompt."""
        if tokens > 0 and history_bytes > 0:
            seen = self._tokens_per_byte
            seen.append(tokens / history_bytes)
            self._unrated += 1
            if self._unrated >= min(_REFIT_EVERY, len(seen) // 2):
                self._rate = max(LEAST_TOKENS_PER_BYTE, _median(sorted(seen)))
                self._unrated = 0

    def estimate(self, path: Path, *, prompt: int, held: int, suffix: int) -> float | None:
        """Milliseconds to the first token of a turn with so many tokens in all, to be read from decode, and
        for decode to compute by itself.

        None where too little was measured.
        """
        if path is Path.DECODE_LOCAL:
            return self._local.at(suffix)
        leg = self._prefill.at(prompt) if path is Path.PREFILL else self._read.at(held)
        if leg is None:
            return None
        computing = (self._prefill.each or 0.0) * max(0, prompt - held) if path is Path.READBACK else 0.0
        return leg + computing + (self._pull.at(prompt) or 0.0)

    def prompt_tokens(self, history_bytes: int) -> int:
        """How many tokens a prompt of so many bytes of JSON may have."""
        return round(self._rate * history_bytes)

    def held_and_new(
        self,
        *,
        history_bytes: int,
        held_bytes: int,
        held_tokens: int,
        held_prompt: int | None,
        new_bytes: int | None = None,
    ) -> tuple[int, int]:
        """How many of a turn's tokens decode may hold, and how many it would have to compute.

        Args:
            history_bytes: of this turn. held_bytes: of the turn that left what decode holds.
            held_tokens: prompt and answer of that turn; held_prompt: its prompt alone, where that is known.
            new_bytes: of this turn's history after what both have in common, where that is not all of the
                held turn's.
        """
        rate = self._rate
        if held_prompt and held_bytes:
            rate = max(LEAST_TOKENS_PER_BYTE, held_prompt / held_bytes)
        if new_bytes is not None:
            common = max(0, history_bytes - new_bytes)
            return min(held_tokens, round(rate * common)), round(rate * new_bytes)
        if history_bytes < held_bytes:
            # It does not go on from there.
            return 0, self.prompt_tokens(history_bytes)
        # The new bytes begin with the answer, whose tokens decode holds already.
        answered = max(0, held_tokens - held_prompt) if held_prompt and held_bytes else 0
        return held_tokens, max(0, round(rate * (history_bytes - held_bytes)) - answered)

    def probes(self, path: Path) -> bool:
        """Whether this turn shall take a path that was measured to be too slow; counts how often it was."""
        self._declined[path] += 1
        return self._declined[path] % PROBE_EVERY == 0


def _fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fixed part and slope, neither negative: the medians of the slopes between points of the lower and the
    upper half, and of what these leave.

    Where all counts are much alike they tell no fixed part, and the line goes through the origin.
    """
    ordered = sorted(points)
    half = len(ordered) // 2
    if ordered[-1 - half // 2][0] < 2 * ordered[half // 2][0]:
        return 0.0, _median(sorted(cost / count for count, cost in ordered))
    pairs = zip(ordered[:half], ordered[-half:], strict=True)
    slopes = sorted((high[1] - low[1]) / (high[0] - low[0]) for low, high in pairs if high[0] > low[0])
    each = max(0.0, _median(slopes))
    return max(0.0, _median(sorted(cost - each * count for count, cost in ordered))), each


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
