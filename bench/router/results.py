"""PURE: windows to rows: medians, ratios, and whether each bound holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from bench.router.window import Window

CPU_RATIO = 0.8
CHUNK_US = 22.0
PATHS = ("prefill", "readback", "decode-local")

Measured = dict[str, list[Window]]
"""The windows of one case, per target (ours, peer, floor), one each round."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; None is what was not measured or has no bound.

    Attributes:
        ratio: ours / vllm-router.
        noisy: windows with other work on the cores had to be counted.
    """

    what: str
    unit: str
    ours: float
    peer: float | None = None
    floor: float | None = None
    bound: str = ""
    holds: bool | None = None
    noisy: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.peer if self.peer else None

    @property
    def unjudged(self) -> bool:
        """It has a bound that cannot be told from this run."""
        return bool(self.bound) and self.holds is None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "unjudged": self.unjudged}


def cpu_per_request(window: Window) -> float:
    """Milliseconds."""
    return 1000 * window.cpu_s / max(window.requests, 1)


def rate(window: Window) -> float:
    return window.requests / window.seconds


def cpu_per_event(window: Window) -> float:
    """Microseconds."""
    return 1e6 * window.cpu_s / max(window.events, 1)


def typical(windows: Sequence[Window], value: Callable[[Window], float]) -> tuple[float, bool]:
    """The median over the windows that count, and whether noisy ones had to."""
    counted, noisy = _counted(windows)
    return median(map(value, counted)), noisy


def first_token(windows: Sequence[Window]) -> tuple[float, bool]:
    """Milliseconds, the median over all requests of the windows that count; whether noisy ones had to."""
    counted, noisy = _counted(windows)
    return 1000 * median(second for window in counted for second in window.first_s), noisy


def _counted(windows: Sequence[Window]) -> tuple[Sequence[Window], bool]:
    """The quiet ones, where at least half are; else all, and True."""
    quiet = [window for window in windows if not window.noisy]
    return (quiet, False) if 2 * len(quiet) >= len(windows) else (windows, True)


def cpu_row(what: str, case: Measured) -> Row:
    (ours, some), (peer, more) = (typical(case[target], cpu_per_request) for target in ("ours", "peer"))
    return Row(
        what, "ms", ours, peer, bound=f"<= {CPU_RATIO} x", holds=ours <= CPU_RATIO * peer, noisy=some or more
    )


def rate_row(what: str, case: Measured) -> Row:
    """A router that leaves its core idle is not at its limit: then the note says so."""
    (ours, some), (peer, more) = (typical(case[target], rate) for target in ("ours", "peer"))
    shares = [typical(case[target], lambda w: w.cpu_s / w.seconds)[0] for target in ("ours", "peer")]
    note = (
        "" if min(shares) > 0.9 else "core not full: " + ", ".join(f"{100 * share:.0f} %" for share in shares)
    )
    return Row(what, "/s", ours, peer, noisy=some or more, note=note)


def ttft_row(what: str, case: Measured) -> Row:
    """What the router adds: its median less the floor's."""
    (floor, some), (ours, more), (peer, most) = (
        first_token(case[target]) for target in ("floor", "ours", "peer")
    )
    return Row(
        what,
        "ms",
        ours - floor,
        peer - floor,
        bound="<= 1 x",
        holds=ours <= peer,
        floor=floor,
        noisy=some or more or most,
    )


def chunk_row(what: str, case: Measured) -> Row:
    """The floor is what a bare relay of bytes takes. If that alone is above the bound, no router above it is
    judged."""
    (floor, some), (ours, more), (peer, most) = (
        typical(case[target], cpu_per_event) for target in ("floor", "ours", "peer")
    )
    return Row(
        what,
        "us",
        ours,
        peer,
        bound=f"<= {CHUNK_US:.0f} us",
        holds=None if ours > CHUNK_US <= floor else ours <= CHUNK_US,
        floor=floor,
        noisy=some or more or most,
    )


def paths_row(what: str, case: Measured) -> Row:
    """The mix is one only where all three ways were taken."""
    taken: Counter[str] = sum((window.paths for window in case["ours"]), Counter())
    total = max(sum(taken.values()), 1)
    note = ", ".join(
        f"{name or 'none named'} {100 * count / total:.0f} %" for name, count in taken.most_common()
    )
    ran = sum(taken[path] > 0 for path in PATHS)
    return Row(what, "of 3", ran, bound="all 3", holds=ran == len(PATHS), note=note)


@dataclass
class Report:
    """Everything that a run gave."""

    machine: dict[str, str]
    commands: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    windows: list[tuple[str, str, Window]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    map_cost: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return all(row.holds is not False and not row.unjudged for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        windows = [{"case": case, "target": target} | _shown(window) for case, target, window in self.windows]
        return {
            "machine": self.machine,
            "commands": self.commands,
            "rows": [row.as_dict() for row in self.rows],
            "remarks": self.remarks,
            "map_cost": self.map_cost,
            "windows": windows,
            "holds": self.holds,
        }


def _shown(window: Window) -> dict[str, Any]:
    """As JSON; of the times to first tokens only what describes them."""
    # asdict cannot copy a Counter.
    shown = asdict(replace(window, paths=Counter(), first_s=()))
    del shown["first_s"]
    shown |= {"paths": dict(window.paths), "noisy": window.noisy}
    if firsts := sorted(1000 * second for second in window.first_s):
        shown |= {"ttft_ms_median": median(firsts), "ttft_ms_p95": firsts[int(0.95 * (len(firsts) - 1))]}
    return shown
