"""The engines behind the router: legs, and pools of equal ones from which each request picks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Literal

from toolkit.router.wire.origin import Origin

_log = logging.getLogger("toolkit.router")

Role = Literal["prefill", "decode"]

# A prompt of so many tokens, computed between the steps of the other requests, weighs as one request more.
_PENDING_TOKENS_PER_REQUEST = 512


class Leg:
    """One engine server. It starts unhealthy: traffic comes after its first good check.

    Attributes:
        draining: gets no new conversations; those whose KV it holds still go there.
        in_flight: requests that it is working on, counted by `busy`.
        pending_tokens: prompt tokens of decode-local turns not yet answered; who sends the turns counts.
        failed_checks, failed_answers: bad ones in a row.
        trouble: what the latest bad check met.
        away_until, away_s: until when, and how long, a leg ejected for its answers stays away.
        offers_leases: its handles name leases: it runs our connector.
        generation: the engine's id of its present start, as last seen in a handle.
        returns: how often it became healthy; another value means that it was away in between.
    """

    __slots__ = (
        "_busy",
        "away_s",
        "away_until",
        "draining",
        "failed_answers",
        "failed_checks",
        "generation",
        "healthy",
        "in_flight",
        "offers_leases",
        "on_idle",
        "origin",
        "pending_tokens",
        "returns",
        "role",
        "trouble",
        "url",
    )

    def __init__(self, role: Role, url: str) -> None:
        self.role: Role = role
        self.url = url
        self.origin = Origin.parse(url)
        self.healthy = False
        self.draining = False
        self.in_flight = 0
        self.offers_leases = False
        self.pending_tokens = 0
        self.failed_checks = 0
        self.failed_answers = 0
        self.trouble = ""
        self.away_until = 0.0
        self.away_s = 0.0
        self.generation: str | None = None
        self.returns = 0
        self.on_idle: Callable[[Leg], None] | None = None
        self._busy = _Busy(self)

    def __repr__(self) -> str:
        return f"{self.role} {self.url}"

    def busy(self) -> _Busy:
        """`with leg.busy():` counts one request in flight."""
        return self._busy

    @property
    def leaving(self) -> bool:
        """It was removed, and goes when it is idle: it gets no more requests at all."""
        return self.on_idle is not None

    def eject(self, at_least_s: float = 0.0) -> None:
        """Takes the leg out until its next good check. `at_least_s` is told only: checks before count for
        nothing, which the caller sees to."""
        if self.healthy:
            after = f" after {at_least_s:g} s" if at_least_s else ""
            _log.warning("%s gets no more traffic until its next good health check%s", self, after)
        self.healthy = False

    def note_check(self, ok: bool, eject_after: int) -> None:
        """One good check brings a leg back; `eject_after` bad ones in a row take it out."""
        if ok:
            self.failed_checks = 0
            if not self.healthy:
                self.returns += 1
                self.failed_answers = 0
                _log.warning("%s is healthy and gets traffic", self)
            self.healthy = True
            return
        self.failed_checks += 1
        if self.failed_checks == eject_after:
            _log.warning("%s does not pass its health check: it %s", self, self.trouble or "failed it")
        if self.failed_checks >= eject_after:
            self.eject()


class _Busy:
    """Counts a leg's requests; one for all of them, since it only counts."""

    __slots__ = ("_leg",)

    def __init__(self, leg: Leg) -> None:
        self._leg = leg

    def __enter__(self) -> None:
        self._leg.in_flight += 1

    def __exit__(self, *_: object) -> None:
        leg = self._leg
        leg.in_flight -= 1
        if leg.in_flight == 0 and leg.on_idle is not None:
            leg.on_idle(leg)


class Pool:
    """The equal legs of one role. `on_gone` is told of each leg that has left it for good."""

    def __init__(
        self, role: Role, urls: Iterable[str] = (), on_gone: Callable[[Leg], None] | None = None
    ) -> None:
        self.role: Role = role
        self.legs: list[Leg] = []
        self.on_gone = on_gone
        self._by_url: dict[str, Leg] = {}
        self._turn = 0
        for url in urls:
            self.add(url)

    def pick(
        self, *, prefer: str | None = None, exclude: Collection[Leg] = (), by_pending: bool = False
    ) -> Leg | None:
        """The leg of the preferred URL if it is healthy, even a draining one; else the healthy, not draining
        one with the fewest requests in flight, equal ones in turn. None when there is none.

        by_pending: prompt tokens that a leg is still to compute count as requests in flight too.
        """
        if prefer is not None:
            holder = self._by_url.get(prefer)
            if holder is not None and holder.healthy and not holder.leaving and holder not in exclude:
                return holder
        best: Leg | None = None
        least, place, count = 0.0, 0, len(self.legs)
        for index in range(self._turn, self._turn + count):
            leg = self.legs[index % count]
            if not leg.healthy or leg.draining or leg in exclude:
                continue
            load = leg.in_flight + (leg.pending_tokens / _PENDING_TOKENS_PER_REQUEST if by_pending else 0)
            if best is None or load < least:
                best, least, place = leg, load, index
        if best is not None:
            self._turn = (place + 1) % count
        return best

    def by_url(self, url: str) -> Leg | None:
        return self._by_url.get(url)

    @property
    def ready(self) -> bool:
        """Whether any leg takes new conversations."""
        return any(leg.healthy and not leg.draining for leg in self.legs)

    def add(self, url: str) -> Leg:
        """A new leg, unhealthy until it is checked; one that was draining or leaving stays after all."""
        leg = self._by_url.get(url)
        if leg is None:
            leg = self._by_url[url] = Leg(self.role, url)
            self.legs.append(leg)
        leg.draining = False
        leg.on_idle = None
        return leg

    def drain(self, url: str) -> None:
        """No new conversations; `add` ends that. Raises KeyError for a URL that no leg has."""
        self._by_url[url].draining = True

    def remove(self, url: str) -> None:
        """No new requests, and gone as soon as none is in flight. Raises KeyError as `drain`."""
        leg = self._by_url[url]
        leg.draining = True
        leg.on_idle = self._let_go
        if leg.in_flight == 0:
            self._let_go(leg)

    def _let_go(self, leg: Leg) -> None:
        leg.on_idle = None
        leg.healthy = False
        del self._by_url[leg.url]
        self.legs.remove(leg)
        self._turn = 0
        if self.on_gone is not None:
            self.on_gone(leg)
