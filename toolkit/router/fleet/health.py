"""Which engines get traffic: regular checks, and what the requests themselves meet."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable

from toolkit.router.fleet.legs import Leg
from toolkit.router.fleet.seam import Asks
from toolkit.router.wire.client import EngineFailed

_log = logging.getLogger("toolkit.router")

FIRST_ROUND_S = 0.5
FIRST_AWAY_S = 5.0
LONGEST_AWAY_S = 60.0
# Of one data-parallel engine each rank has an id of its own, and all of them start together.
_RANK = re.compile(r"_dp\d+$")


def health_check(client: Asks, timeout_s: float) -> Callable[[Leg], Awaitable[bool]]:
    """Whether GET /health answers 200 within `timeout_s`.

    Of a decode leg that is new or was away it also finds out whether there are lease routes: only then may
    decode be asked to keep blocks of its own accord.
    """

    async def check(leg: Leg) -> bool:
        try:
            answer = await client.whole(leg, "GET", "/health", b"", None, timeout_s)
            if answer.status == 200 and leg.role == "decode" and not leg.healthy:
                leases = await client.whole(leg, "GET", "/pd/leases", b"", None, timeout_s)
                # Refused for want of the secret, they are there all the same.
                leg.offers_leases = leases.status in (200, 401, 403)
        except EngineFailed as failure:
            leg.trouble = failure.why
            return False
        leg.trouble = f"answered {answer.status} to GET {leg.origin.base}/health"
        return answer.status == 200

    return check


class HealthWatch:
    """Checks every leg each `interval_s` seconds, and counts the failures that requests meet.

    legs: asked at each round, for they come and go.
    eject_after: so many bad checks, or failed requests, in a row take a leg out.
    on_round: called after each round has begun.
    on_restart: told of a leg whose engine has started anew, so that what it held is forgotten.
    """

    def __init__(
        self,
        legs: Callable[[], Iterable[Leg]],
        check: Callable[[Leg], Awaitable[bool]],
        *,
        interval_s: float,
        eject_after: int,
        decode_alone: bool = False,
        on_round: Callable[[], None] = lambda: None,
        on_restart: Callable[[Leg], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._legs = legs
        self._check = check
        self._interval_s = interval_s
        self._eject_after = eject_after
        self._decode_alone = decode_alone
        self._on_round = on_round
        self._on_restart = on_restart
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._checking: dict[Leg, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Begins with a round, so that a router with live engines starts ready; waits for no silent one."""
        self._begin_round()
        if self._checking:
            await asyncio.wait(list(self._checking.values()), timeout=FIRST_ROUND_S)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [*self._checking.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def answered(self, leg: Leg) -> None:
        """A request got a usable answer of the leg (anything below 500)."""
        leg.failed_answers = 0

    def failed(self, leg: Leg) -> None:
        """A request got a 5xx, a broken connection or no answer in time. After `eject_after` in a row the leg
        stays away for a while that doubles with each time, and comes back at the next good check.

        The last leg of its role stays: requests that break every engine must not take all of them away. But
        the last prefill leg goes where decode may compute alone.
        """
        leg.failed_answers += 1
        if leg.failed_answers < self._eject_after or not leg.healthy or not self._is_spare(leg):
            return
        now = self._clock()
        # Long good since it came back: as if for the first time.
        again = leg.away_s > 0 and now < leg.away_until + 2 * LONGEST_AWAY_S
        leg.away_s = min(2 * leg.away_s, LONGEST_AWAY_S) if again else FIRST_AWAY_S
        leg.away_until = now + leg.away_s
        _log.warning("%s failed %d requests in a row", leg, leg.failed_answers)
        leg.failed_answers = 0
        leg.eject(leg.away_s)

    def saw_engine(self, leg: Leg, engine_id: str) -> None:
        """A handle of the leg names its engine. Call it before what the handle says is saved."""
        generation = _RANK.sub("", engine_id)
        if generation == leg.generation:
            return
        known, leg.generation = leg.generation, generation
        if known is not None:
            _log.warning("%s has a new engine: what the earlier one held is forgotten", leg)
            self._on_restart(leg)

    def _is_spare(self, leg: Leg) -> bool:
        """Whether others can do its work."""
        roles = ("prefill", "decode") if leg.role == "prefill" and self._decode_alone else (leg.role,)
        return any(
            other.healthy and not other.draining
            for other in self._legs()
            if other.role in roles and other is not leg
        )

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self._begin_round()

    def _begin_round(self) -> None:
        """A leg that is still being asked is not asked again; the others do not wait for it."""
        for leg in self._legs():
            if leg not in self._checking:
                self._checking[leg] = asyncio.create_task(self._check_one(leg))
        self._on_round()

    async def _check_one(self, leg: Leg) -> None:
        try:
            ok = await self._check(leg)
        except Exception:
            _log.exception("the health check of %s failed inside the router", leg)
            ok = False
        finally:
            del self._checking[leg]
        left = leg not in tuple(self._legs())
        # One that still has to stay away is better than none.
        may_return = self._clock() >= leg.away_until or not self._is_spare(leg)
        if not left and (not ok or may_return):
            leg.note_check(ok, self._eject_after)
