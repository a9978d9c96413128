"""Decode's leases, claimed, released and renewed over its lease routes, in batches that nobody waits for.

An engine answers between two of its steps, so per leg and operation one request is under way, and what comes
meanwhile goes into the next one.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import orjson

from toolkit.router.fleet.legs import Leg
from toolkit.router.fleet.seam import Asks
from toolkit.router.wire.client import EngineFailed

_log = logging.getLogger("toolkit.router")

Operation = Literal["claim", "release", "renew"]

MOST_NAMES = 1024
TICK_S = 0.005
TIMEOUT_S = 5.0
# What the routes take, in characters that JSON writes as they are: MOST_NAMES of them fit into one body.
_NAME = re.compile(r"[!#-\[\]-~]{1,64}")
# Enough for an engine that is busy for a moment; after that the lease's own time ends it.
_RELEASE_TRIES = 3
# A lease that somebody is about to read has not ended.
_STILL_THERE = ("claimed", "reading")
_CLOSED = {
    401: "refuses the lease secret; give --lease-secret-file here and PD_LEASE_SECRET_FILE there one content",
    403: "takes lease requests of its own machine only; name a file with one secret on both sides: "
    "PD_LEASE_SECRET_FILE for the engine, --lease-secret-file for the router",
    404: "has no lease routes; its leases end by their time (install pd-connector there to change that)",
    405: "has no lease routes; its leases end by their time (install pd-connector there to change that)",
}


@dataclass(slots=True)
class LeaseCounts:
    """What became of the names asked about.

    refused: claims of leases that had ended or that another turn has. ended: releases that came too late.
    handed_on: releases that went out with a request. lost: held leases that ended before anybody came back.
    failed: not delivered, or not answered for.
    """

    claimed: int = 0
    refused: int = 0
    released: int = 0
    ended: int = 0
    handed_on: int = 0
    renewed: int = 0
    lost: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Kept:
    """A lease of a conversation that may go on; times of the keeper's clock."""

    due: float
    expires: float
    until: float


@dataclass(slots=True)
class _Desk:
    """What is to be asked of one leg. `closed_in`: the leg's `returns` when it would not take requests; from
    then on its releases wait in `in_band` for a request that takes them along."""

    leg: Leg
    waiting: dict[Operation, dict[str, int]] = field(
        default_factory=lambda: {operation: {} for operation in get_args(Operation)}
    )
    senders: dict[Operation, asyncio.Task[None]] = field(default_factory=dict)
    kept: dict[str, _Kept] = field(default_factory=dict)
    in_band: dict[str, None] = field(default_factory=dict)
    closed_in: int | None = None
    troubled: bool = False

    def is_closed(self) -> bool:
        """A leg that was away may have come back with other settings, so it is asked again."""
        return self.closed_in == self.leg.returns


class LeaseKeeper:
    """Owner of the leases that decode's handles name. `claim`, `release`, `keep` and `poll` never wait.

    secret: of the lease routes; None where the engines run on this machine.
    ttl_s: how long a lease lasts at least from its granting, seconds.
    hold_s: so long a kept lease is renewed, counted from its granting; None: never.
    claims: whether `claim` asks the engine.
    on_lost: told of leases that have ended although a conversation counted on them, and of their last state.
    """

    def __init__(
        self,
        client: Asks,
        secret: bytes | None,
        *,
        ttl_s: float,
        hold_s: float | None = None,
        claims: bool = True,
        on_lost: Callable[[Leg, str, str], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = 1.0,
    ) -> None:
        self.counts = LeaseCounts()
        self._client = client
        self._headers = b"content-type: application/json\r\n"
        if secret is not None:
            self._headers += b"authorization: Bearer " + secret + b"\r\n"
        self._ttl_s = ttl_s
        self._hold_s = hold_s
        self._claims = claims
        self._on_lost = on_lost
        self._clock = clock
        self._retry_s = retry_s
        self._desks: dict[Leg, _Desk] = {}
        # (when, tie, leg, lease); an entry whose time is not the kept lease's is an old one.
        self._due: list[tuple[float, int, Leg, str]] = []
        self._ties = 0

    @property
    def kept(self) -> int:
        """How many leases are renewed."""
        return sum(len(desk.kept) for desk in self._desks.values())

    def claim(self, leg: Leg, lease: str) -> None:
        """A turn is about to read the lease: it is protected for that, and renewed no more."""
        self.forget(leg, lease)
        if self._claims:
            self._ask_soon(leg, "claim", (lease,))

    def release(self, leg: Leg, *leases: str) -> None:
        """Nobody comes back for the leases."""
        desk = self._desk(leg)
        for lease in leases:
            self.forget(leg, lease)
            desk.waiting["claim"].pop(lease, None)
        self._ask_soon(leg, "release", leases)

    def take_in_band(self, leg: Leg) -> list[str]:
        """Leases that the next request to this leg shall let go of, its lease routes being closed."""
        desk = self._desks.get(leg)
        if desk is None or not desk.in_band:
            return []
        taken, desk.in_band = list(desk.in_band), {}
        self.counts.handed_on += len(taken)
        return taken

    def keep(self, leg: Leg, lease: str, *, age_s: float = 0.0) -> None:
        """Renews the lease when half of its time is over, until it is `hold_s` old.

        age_s: how long ago it was granted.
        """
        if self._hold_s is None:
            return
        now = self._clock()
        granted = now - age_s
        # An old one may have been renewed by an earlier router, so it is asked about in any case.
        expires = max(granted + self._ttl_s, now + 2 * TIMEOUT_S)
        kept = _Kept(due=0.0, expires=expires, until=granted + self._hold_s)
        self._desk(leg).kept[lease] = kept
        self._plan(leg, lease, kept, max(now, granted + self._ttl_s / 2))

    def forget(self, leg: Leg, lease: str) -> None:
        """Renews the lease no more."""
        desk = self._desk(leg)
        desk.kept.pop(lease, None)
        desk.waiting["renew"].pop(lease, None)

    def forget_leg(self, leg: Leg) -> None:
        """The leg's engine is another one, or gone: nothing of its leases is left."""
        desk = self._desks.pop(leg, None)
        if desk is not None:
            for sender in desk.senders.values():
                sender.cancel()

    def poll(self) -> None:
        """Renews what is due, and tells of what has run out in spite of that. To be called each second."""
        now = self._clock()
        due: dict[Leg, list[str]] = {}
        while self._due and self._due[0][0] <= now:
            when, _, leg, lease = heapq.heappop(self._due)
            desk = self._desks.get(leg)
            kept = desk.kept.get(lease) if desk is not None else None
            if kept is None or kept.due != when:
                continue
            if now >= kept.until:
                self.forget(leg, lease)
                continue
            if now >= kept.expires:
                self._lose(leg, lease, "expired")
                continue
            # Until the answer comes: asked again when half of what is left is over.
            self._plan(leg, lease, kept, now + max(1.0, (kept.expires - now) / 2))
            due.setdefault(leg, []).append(lease)
        for leg, leases in due.items():
            self._ask_soon(leg, "renew", leases)

    async def drain(self, timeout_s: float) -> int:
        """Waits until all is sent, then gives up; the number of names that were not."""
        senders = [sender for desk in self._desks.values() for sender in desk.senders.values()]
        if senders:
            await asyncio.wait(senders, timeout=timeout_s)
        left = sum(len(names) for desk in self._desks.values() for names in desk.waiting.values())
        for sender in senders:
            sender.cancel()
        if senders:
            await asyncio.wait(senders)
        self.counts.failed += left
        return left

    def _desk(self, leg: Leg) -> _Desk:
        desk = self._desks.get(leg)
        if desk is None:
            desk = self._desks[leg] = _Desk(leg)
        return desk

    def _plan(self, leg: Leg, lease: str, kept: _Kept, due: float) -> None:
        kept.due = due
        self._ties += 1
        heapq.heappush(self._due, (due, self._ties, leg, lease))

    def _lose(self, leg: Leg, lease: str, state: str) -> None:
        self.forget(leg, lease)
        self.counts.lost += 1
        self._on_lost(leg, lease, state)

    def _ask_soon(self, leg: Leg, operation: Operation, leases: Iterable[str]) -> None:
        desk = self._desk(leg)
        if desk.is_closed():
            if operation == "release":
                self._hand_on(desk, leases)
            return
        waiting = desk.waiting[operation]
        for lease in leases:
            if _NAME.fullmatch(lease):
                waiting[lease] = 0
            else:
                # The engine would refuse the whole batch for it.
                self.counts.failed += 1
        if waiting and operation not in desk.senders:
            desk.senders[operation] = asyncio.create_task(self._send(desk, operation))

    def _hand_on(self, desk: _Desk, leases: Iterable[str]) -> None:
        """The engine takes no more with one request; what is left over ends by its time."""
        for lease in leases:
            if len(desk.in_band) < MOST_NAMES and _NAME.fullmatch(lease):
                desk.in_band[lease] = None
            else:
                self.counts.failed += 1

    async def _send(self, desk: _Desk, operation: Operation) -> None:
        waiting = desk.waiting[operation]
        batch: dict[str, int] = {}
        try:
            await asyncio.sleep(TICK_S)
            while waiting and not desk.is_closed():
                batch = {name: waiting[name] for name in list(waiting)[:MOST_NAMES]}
                for name in batch:
                    del waiting[name]
                answers = await self._ask(desk, operation, batch)
                if answers is not None:
                    self._note(desk, operation, batch, answers)
                elif operation != "release":
                    self.counts.failed += len(batch)
                elif desk.is_closed():
                    self._hand_on(desk, batch)
                else:
                    await self._again(waiting, batch)
                batch = {}
            if operation == "release":
                self._hand_on(desk, waiting)
            else:
                self.counts.failed += len(waiting)
            waiting.clear()
        finally:
            del desk.senders[operation]
            self.counts.failed += len(batch)

    async def _again(self, waiting: dict[str, int], batch: dict[str, int]) -> None:
        """Only a release is sent again: a late claim is worth nothing, and a renewal has its next time."""
        tries = min(batch.values()) + 1
        for name, before in batch.items():
            if before + 1 < _RELEASE_TRIES:
                waiting[name] = before + 1
            else:
                self.counts.failed += 1
        batch.clear()
        if waiting:
            await asyncio.sleep(self._retry_s * 2 ** (tries - 1))

    async def _ask(self, desk: _Desk, operation: Operation, names: Iterable[str]) -> dict[str, Any] | None:
        """The engine's answer per name; None when there is none of use, which is logged once."""
        body = orjson.dumps({"leases": list(names)})
        path = f"/pd/leases/{operation}"
        try:
            answer = await self._client.whole(desk.leg, "POST", path, self._headers, body, TIMEOUT_S)
        except EngineFailed as failure:
            self._complain(desk, operation, failure.why)
            return None
        if answer.status in _CLOSED:
            desk.closed_in = desk.leg.returns
            _log.warning("%s %s (%s answered %d)", desk.leg, _CLOSED[answer.status], path, answer.status)
            return None
        leases = _leases(answer.body) if answer.status == 200 else None
        if leases is None:
            self._complain(desk, operation, f"answered {answer.status} without an answer per lease")
            return None
        desk.troubled = False
        return leases

    def _complain(self, desk: _Desk, operation: Operation, why: str) -> None:
        if not desk.troubled:
            _log.warning("%s: a lease request (%s) failed: %s", desk.leg, operation, why)
        desk.troubled = True

    def _note(self, desk: _Desk, operation: Operation, names: Iterable[str], answers: dict[str, Any]) -> None:
        for name in names:
            answer = answers.get(name)
            if not isinstance(answer, dict):
                self.counts.failed += 1
                continue
            state = str(answer.get("state"))
            ok = answer.get("ok") is True
            if operation == "renew":
                self._note_renewal(desk, name, ok, state, answer.get("seconds"))
            elif operation == "release":
                self.counts.released += ok
                self.counts.ended += not ok
            else:
                self.counts.claimed += ok
                self.counts.refused += not ok
                if not ok and state not in _STILL_THERE:
                    self._on_lost(desk.leg, name, state)

    def _note_renewal(self, desk: _Desk, lease: str, ok: bool, state: str, seconds: Any) -> None:
        kept = desk.kept.get(lease)
        self.counts.renewed += ok
        if kept is None:
            return  # Its conversation has ended or goes on, meanwhile.
        if not ok:
            self._lose(desk.leg, lease, state)
            return
        now = self._clock()
        left = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else self._ttl_s
        kept.expires = now + left
        self._plan(desk.leg, lease, kept, now + left / 2)


def _leases(body: bytes) -> dict[str, Any] | None:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    leases = content.get("leases") if isinstance(content, dict) else None
    return leases if isinstance(leases, dict) else None
