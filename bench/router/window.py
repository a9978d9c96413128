"""One measurement: clients at work, and what was used and done between two looks at the clocks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.router import cpu
from bench.router.client import Client, LoadFailed, Tally

STOP_S = 20.0
STRANGE_SHARE = 0.10
STOLEN_SHARE = 0.02
"""From these shares of a core on, other work or the hypervisor makes a measurement noisy."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The pinned ones: the router's, and that of the stub engines and the clients (this process)."""

    router: int
    load: int


@dataclass(frozen=True, slots=True)
class Window:
    """What happened in one window.

    Attributes:
        cpu_s: of the router's process tree; 0 where there is none (the floor).
        first_s: of each request sent in it or just before, seconds to the answer's first byte.
        strange: the larger share of a core that neither router nor load used, but others.
        stolen: the larger share of a core that the hypervisor took.
    """

    seconds: float
    cpu_s: float
    load_cpu_s: float
    requests: int
    events: int
    first_s: tuple[float, ...]
    paths: Counter[str] = field(default_factory=Counter)
    strange: float = 0.0
    stolen: float = 0.0

    @property
    def noisy(self) -> bool:
        return self.strange > STRANGE_SHARE or self.stolen > STOLEN_SHARE


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    router_s: float
    load_s: float
    cores: tuple[cpu.Core, cpu.Core]
    requests: int
    events: int
    firsts: int


def _look(pid: int | None, cores: Cores, tally: Tally) -> _Look:
    return _Look(
        at=time.perf_counter(),
        router_s=0.0 if pid is None else cpu.used(pid),
        load_s=time.process_time(),
        cores=(cpu.core(cores.router), cpu.core(cores.load)),
        requests=tally.done,
        events=tally.events,
        firsts=len(tally.first),
    )


async def observe(
    clients: Sequence[Client],
    tally: Tally,
    pid: int | None,
    cores: Cores,
    *,
    warm_s: float,
    window_s: float,
    lag_s: float,
) -> Window:
    """Starts the clients `lag_s` apart, leaves them `warm_s`, looks for `window_s` and stops them.

    Raises:
        LoadFailed: an answer was wrong, or the clients do not come to an end.
    """
    try:
        for client in clients:
            client.start()
            if lag_s:
                await asyncio.sleep(lag_s)
        await asyncio.sleep(warm_s)
        before = _look(pid, cores, tally)
        await asyncio.sleep(window_s)
        after = _look(pid, cores, tally)
        for client in clients:
            client.stop()
        async with asyncio.timeout(STOP_S):
            await asyncio.gather(*(client.stopped for client in clients))
    except TimeoutError:
        tally.check()
        raise LoadFailed(f"answers do not end within {STOP_S:.0f} s") from None
    finally:
        for client in clients:
            client.close()
    tally.check()
    return _between(before, after, tally)


def _between(before: _Look, after: _Look, tally: Tally) -> Window:
    seconds = after.at - before.at
    used = after.router_s - before.router_s, after.load_s - before.load_s
    busy = [late.busy - early.busy for early, late in zip(before.cores, after.cores, strict=True)]
    stolen = [late.stolen - early.stolen for early, late in zip(before.cores, after.cores, strict=True)]
    return Window(
        seconds=seconds,
        cpu_s=used[0],
        load_cpu_s=used[1],
        requests=after.requests - before.requests,
        events=after.events - before.events,
        first_s=tuple(tally.first[before.firsts : after.firsts]),
        paths=tally.paths,
        strange=max((core - own) / seconds for core, own in zip(busy, used, strict=True)),
        stolen=max(stolen) / seconds,
    )
