"""The engines behind the router: pools of legs, whose health a background watch keeps up to date."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal

_log = logging.getLogger("toolkit.router")

Role = Literal["prefill", "decode"]


@dataclass(slots=True, eq=False)
class Leg:
    """One engine server. It starts unhealthy: traffic comes after its first good check."""

    role: Role
    url: str
    healthy: bool = False
    failed_checks: int = 0

    def eject(self) -> None:
        """Takes the leg out until its next good check."""
        if self.healthy:
            _log.warning("%s %s gets no more traffic until its next good health check", self.role, self.url)
        self.healthy = False

    def note_check(self, ok: bool, eject_after: int) -> None:
        """One good check brings a leg back; `eject_after` bad ones in a row take it out."""
        if ok:
            self.failed_checks = 0
            if not self.healthy:
                _log.warning("%s %s is healthy and gets traffic", self.role, self.url)
            self.healthy = True
            return
        self.failed_checks += 1
        if self.failed_checks >= eject_after:
            self.eject()


class Pool:
    """The equal legs of one role, taken in turn."""

    def __init__(self, role: Role, urls: Iterable[str]) -> None:
        self.role = role
        self.legs = [Leg(role, url) for url in urls]
        self._next = 0

    def pick(self, *, prefer: str | None = None, exclude: Collection[Leg] = ()) -> Leg | None:
        """A healthy leg: the preferred URL if it is one, else the next in turn; None when there is none."""
        ready = [leg for leg in self.legs if leg.healthy and leg not in exclude]
        for leg in ready:
            if leg.url == prefer:
                return leg
        if not ready:
            return None
        self._next += 1
        return ready[self._next % len(ready)]

    def is_healthy(self, url: str) -> bool:
        return any(leg.healthy for leg in self.legs if leg.url == url)

    @property
    def ready(self) -> bool:
        return any(leg.healthy for leg in self.legs)


class HealthWatch:
    """Asks every leg for its health, all at once, every `interval_s` seconds."""

    def __init__(
        self,
        legs: Iterable[Leg],
        check: Callable[[Leg], Awaitable[bool]],
        *,
        interval_s: float,
        eject_after: int,
        on_round: Callable[[], None],
    ) -> None:
        self._legs = list(legs)
        self._check = check
        self._interval_s = interval_s
        self._eject_after = eject_after
        self._on_round = on_round
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Runs one round before returning, so that a router with live engines starts ready."""
        await self._round()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._round()

    async def _round(self) -> None:
        results = await asyncio.gather(*(self._check(leg) for leg in self._legs))
        for leg, ok in zip(self._legs, results, strict=True):
            leg.note_check(ok, self._eject_after)
        self._on_round()
