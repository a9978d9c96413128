"""All measurements of a run, in rounds.

Within a round the targets take turns, so that a busy moment of the machine meets them all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.router import results
from bench.router.bodies import MIX, TWO_LEGS
from bench.router.load import Bench
from bench.router.results import Measured, Row
from bench.router.targets import Router
from bench.router.window import Window

KB = 1024
SIZES = (4 * KB, 100 * KB, 400 * KB)
GROUPS = ("cpu", "ttft", "chunks", "map")

Step = Callable[[], Awaitable[Window]]


@dataclass(frozen=True)
class Case:
    """One thing that is measured of each target, and the rows that come of it."""

    group: str
    name: str
    steps: dict[str, Step]
    rows: Callable[[Measured], list[Row]]


@dataclass(frozen=True)
class Plan:
    """How much is measured. Times are seconds.

    Times to first tokens are looked at in many short windows: what else this machine's host does changes them
    more than any router, and for seconds at a time.
    """

    rounds: int
    ttft_rounds: int
    chunk_rounds: int
    warm_s: float
    window_s: float
    ttft_sizes: tuple[int, ...]
    two_legs: bool

    def rounds_of(self, group: str) -> int:
        return {"ttft": self.ttft_rounds, "chunks": self.chunk_rounds}.get(group, self.rounds)


FULL = Plan(
    rounds=5, ttft_rounds=12, chunk_rounds=3, warm_s=0.4, window_s=1.5, ttft_sizes=SIZES[:2], two_legs=True
)
QUICK = Plan(
    rounds=3, ttft_rounds=4, chunk_rounds=2, warm_s=0.3, window_s=0.8, ttft_sizes=SIZES[1:2], two_legs=False
)


def cases(bench: Bench, plan: Plan, ours: Router, peer: Router, bare: Router) -> list[Case]:
    routers = {"ours": ours, "peer": peer}
    made = [_cpu(bench, routers, size, MIX, "agents' turns") for size in SIZES]
    if plan.two_legs:
        made += [_cpu(bench, routers, size, TWO_LEGS, "always two legs") for size in SIZES]
    made += [_ttft(bench, routers, size, clients) for size in plan.ttft_sizes for clients in (1, 16)]
    return [*made, _chunks(bench, routers | {"floor": bare})]


def _cpu(bench: Bench, routers: dict[str, Router], size: int, new: tuple[int, ...], kind: str) -> Case:
    shown = f"{size // KB} KB, {kind}"

    def rows(case: Measured) -> list[Row]:
        made = [
            results.cpu_row(f"CPU per request, {shown}", case),
            results.rate_row(f"requests, {shown}", case),
        ]
        return [*made, results.paths_row(f"paths of ours, {shown}", case)] if new == MIX else made

    steps = {name: _step(bench.saturate, router, size, new) for name, router in routers.items()}
    return Case("cpu", shown, steps, rows)


def _ttft(bench: Bench, routers: dict[str, Router], size: int, clients: int) -> Case:
    shown = f"{size // KB} KB, {clients} {'stream' if clients == 1 else 'streams'}"
    steps = {name: _step(bench.first_tokens, router, size, clients) for name, router in routers.items()}
    steps["floor"] = _step(bench.first_tokens, None, size, clients)
    return Case("ttft", shown, steps, lambda case: [results.ttft_row(f"added TTFT, {shown}", case)])


def _chunks(bench: Bench, routers: dict[str, Router]) -> Case:
    shown = "64 streams, 20 ms apart"
    steps = {name: _step(bench.chunks, router) for name, router in routers.items()}
    return Case("chunks", shown, steps, lambda case: [results.chunk_row(f"CPU per chunk, {shown}", case)])


def _step(measure: Callable[..., Awaitable[Window]], *given: object) -> Step:
    return lambda: measure(*given)


async def run(chosen: list[Case], plan: Plan, report: results.Report) -> None:
    """Fills the report's rows and windows."""
    measured: dict[str, Measured] = {case.name: {target: [] for target in case.steps} for case in chosen}
    began = time.monotonic()
    rounds = max(plan.rounds_of(case.group) for case in chosen) if chosen else 0
    for number in range(rounds):
        for case in chosen:
            if number >= plan.rounds_of(case.group):
                continue
            # The one that begins alternates too.
            for target in sorted(case.steps, reverse=number % 2 == 1):
                window = await case.steps[target]()
                measured[case.name][target].append(window)
                report.windows.append((f"{case.group}: {case.name}", target, window))
        print(f"round {number + 1} of {rounds}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    for case in chosen:
        report.rows += case.rows(measured[case.name])
    noisy = [window for _, _, window in report.windows if window.noisy]
    if noisy:
        report.remarks.append(
            f"{len(noisy)} of {len(report.windows)} measurements were noisy: other work took up to "
            f"{100 * max(window.strange for window in noisy):.0f} %, the hypervisor up to "
            f"{100 * max(window.stolen for window in noisy):.0f} % of a core; rows that count them say so"
        )
