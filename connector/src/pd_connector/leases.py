"""The leases under which an engine holds blocks for another one: who may read them, and until when.

One book per engine, in the scheduler's process. The scheduler grants and gives up, the routes renew, claim
and release, and the side channel lets a reader begin: several threads, so every step takes the lock.
Pure: no vLLM. Times are seconds of `clock`.

States: held -> claimed -> reading -> read, and from any of the first three released, given-up or expired.
"""

import math
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CLAIM_SECONDS = 30.0
"""How long a claim protects from being given up, and how long a read may take."""
BACKSTOP_SECONDS = 60.0
"""The book ends a lease; workers that hear nothing of it do so this much later."""
_REMEMBERED = 4096
"""Ended leases whose end can still be told."""

Ending = Literal["read", "released", "given_up", "expired"]
COUNTS = ("granted", "renewed", "claimed", "refused", "read", "released", "given_up", "expired")
"""Granted is the sum of the last four and of the leases held now."""


@dataclass(eq=False)
class Lease:
    """Blocks of one finished request, kept for a later reader."""

    identifier: str
    request: str
    blocks: Sequence[int]
    tokens: int
    expiry: float
    seal: str
    """Digest of the handle's blocks and proof: a reader must have exactly these."""
    handoff: bool
    """Prefill's blocks for decode's pull: neither renewed nor given up, their time is vLLM's affair."""
    claimed_until: float = 0.0
    reader: str | None = None
    reading_until: float = 0.0
    released: bool = False
    """Somebody let go of it while it was being read."""


class LeaseBook:
    """All leases of one engine, the longest unrenewed first."""

    def __init__(self, ttl: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.ttl = ttl
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._lock = threading.RLock()
        self._leases: OrderedDict[str, Lease] = OrderedDict()
        self._by_request: dict[str, Lease] = {}
        self._families: dict[str, Lease] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._leaving: dict[str, Lease] = {}
        self._deadlines: dict[str, float] = {}
        self._sweep_at = math.inf
        self._held = 0
        self._held_tokens = 0

    # The scheduler's side.

    def grant(
        self,
        request: str,
        blocks: Sequence[int],
        tokens: int,
        seal: str,
        family: str | None = None,
        handoff: bool = False,
    ) -> Lease:
        """A new lease. Of a family (the choices of one request) only the last granted is in an answer."""
        with self._lock:
            expiry = self._clock() + (0.0 if handoff else self.ttl)
            lease = Lease(secrets.token_urlsafe(16), request, blocks, tokens, expiry, seal, handoff)
            self._leases[lease.identifier] = lease
            self._by_request[request] = lease
            if not handoff:
                self.counts["granted"] += 1
                self._held += 1
                self._held_tokens += tokens
                self._sweep_at = min(self._sweep_at, expiry)
            if family is not None:
                if sibling := self._families.get(family):
                    self._let_go(sibling)
                self._families[family] = lease
            return lease

    def give_up(self, wanted: int, gain: Callable[[Sequence[int]], int]) -> list[Lease]:
        """End the oldest leases that nobody has claimed until their blocks' `gain` is as wanted."""
        given: list[Lease] = []
        with self._lock:
            for lease in list(self._leases.values()):
                if wanted <= 0:
                    break
                if not self._is_protected(lease):
                    self._end(lease, "given_up")
                    given.append(lease)
                    wanted -= gain(lease.blocks)
        return given

    def any_to_give_up(self) -> bool:
        with self._lock:
            return not all(map(self._is_protected, self._leases.values()))

    def sweep(self) -> None:
        """End what has expired, and what was released while it was being read."""
        with self._lock:
            now = self._clock()
            if now < self._sweep_at:
                return
            for lease in list(self._leases.values()):
                if lease.reading_until > now:
                    continue
                if lease.released:
                    self._end(lease, "released")
                elif not lease.handoff and lease.expiry <= now:
                    self._end(lease, "expired")
            self._sweep_at = min(map(self._deadline, self._leases.values()), default=math.inf)

    def freed(self, request: str) -> None:
        """The workers let go of the request's blocks: they were told to, or the blocks were read."""
        with self._lock:
            lease = self._by_request.pop(request, None)
            if lease is not None and lease.identifier in self._leases:
                self._end(lease, "read" if lease.expiry > self._clock() else "expired")
            self._deadlines.pop(request, None)
            self._leaving.pop(request, None)

    def leaving(self) -> list[Lease]:
        """Ended, but their blocks are not free yet."""
        with self._lock:
            return list(self._leaving.values())

    def take_deadlines(self) -> dict[str, float]:
        """What the workers must be told: per request its new deadline, 0 to let go at once."""
        with self._lock:
            taken, self._deadlines = self._deadlines, {}
            return taken

    def has_news(self) -> bool:
        """The workers wait to be told something."""
        return bool(self._deadlines)

    def next_deadline(self) -> float | None:
        """When `sweep` will next have something to do."""
        with self._lock:
            soonest = min(map(self._deadline, self._leases.values()), default=math.inf)
            return None if soonest == math.inf else soonest

    def any_held(self) -> bool:
        return self._held > 0

    def held(self) -> list[Lease]:
        with self._lock:
            return [lease for lease in self._leases.values() if not lease.handoff]

    # The router's side. An answer per lease: ok, state, and what is left of its time.

    def renew(self, identifier: str) -> dict[str, Any]:
        """Make it the youngest, and let its time begin anew."""
        with self._lock:
            lease = self._usable(identifier)
            if lease is None:
                return self._refuse(identifier)
            self.counts["renewed"] += 1
            return self._extend(lease)

    def claim(self, identifier: str) -> dict[str, Any]:
        """Protect it for a read that is about to come. Refused while another claim or read lasts."""
        with self._lock:
            lease = self._usable(identifier)
            now = self._clock()
            if lease is None or lease.claimed_until > now or lease.reading_until > now:
                return self._refuse(identifier)
            lease.claimed_until = now + CLAIM_SECONDS
            self.counts["claimed"] += 1
            return self._extend(lease)

    def release(self, identifier: str) -> dict[str, Any]:
        """Let go of it: at once, or when the read that goes on has ended."""
        with self._lock:
            lease = self._usable(identifier)
            if lease is None:
                return {"ok": False, "state": self._ended.get(identifier, "unknown")}
            self._let_go(lease)
            return {"ok": True, "state": self._state(lease)}

    # The reader's side.

    def begin_read(self, identifier: str, reader: str, seal: str) -> bool:
        """May `reader` read the blocks now? Then for CLAIM_SECONDS only its report ends the lease.

        Without a name the reader only asks whether the handle is of this engine.
        """
        with self._lock:
            lease = self._leases.get(identifier)
            if not reader:
                return lease is not None and lease.seal == seal
            if lease is None or not self._is_readable(lease, reader, seal):
                self.counts["refused"] += 1
                return False
            lease.reader = reader
            lease.reading_until = self._clock() + CLAIM_SECONDS
            lease.expiry = max(lease.expiry, lease.reading_until)
            self._deadlines[lease.request] = self._for_workers(lease)
            return True

    def summary(self) -> dict[str, int]:
        """Every count so far, and what is held now."""
        counts = {name: self.counts[name] for name in COUNTS}
        return {**counts, "held": self._held, "held_tokens": self._held_tokens}

    def answer(self, operation: str, identifiers: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Renew, claim or release each."""
        step = {"renew": self.renew, "claim": self.claim, "release": self.release}[operation]
        return {identifier: step(identifier) for identifier in identifiers}

    # Within the lock.

    def _usable(self, identifier: str) -> Lease | None:
        lease = self._leases.get(identifier)
        usable = lease and not lease.released and not lease.handoff and lease.expiry > self._clock()
        return lease if usable else None

    def _is_readable(self, lease: Lease, reader: str, seal: str) -> bool:
        now = self._clock()
        if lease.released or lease.seal != seal or (lease.expiry <= now and not lease.handoff):
            return False
        # Another reader's report would free the blocks under this one.
        return lease.reader in (None, reader) or lease.reading_until <= now

    def _refuse(self, identifier: str) -> dict[str, Any]:
        self.counts["refused"] += 1
        lease = self._leases.get(identifier)
        state = self._ended.get(identifier, "unknown") if lease is None else self._state(lease)
        return {"ok": False, "state": state}

    def _extend(self, lease: Lease) -> dict[str, Any]:
        now = self._clock()
        lease.expiry = max(lease.expiry, now + self.ttl)
        self._deadlines[lease.request] = self._for_workers(lease)
        self._leases.move_to_end(lease.identifier)
        return {
            "ok": True,
            "state": self._state(lease),
            "seconds": round(lease.expiry - now, 3),
            "remote_blocks_expiry_time": lease.expiry,
        }

    def _state(self, lease: Lease) -> str:
        now = self._clock()
        if lease.identifier not in self._leases:
            return self._ended.get(lease.identifier, "unknown")
        if lease.reading_until > now:
            return "reading"
        return "claimed" if lease.claimed_until > now else "held"

    def _is_protected(self, lease: Lease) -> bool:
        now = self._clock()
        return lease.handoff or lease.claimed_until > now or lease.reading_until > now

    @staticmethod
    def _for_workers(lease: Lease) -> float:
        return lease.expiry if lease.handoff else lease.expiry + BACKSTOP_SECONDS

    @staticmethod
    def _deadline(lease: Lease) -> float:
        """When `sweep` will end it; never for a hand-off that nobody released."""
        if lease.released:
            return lease.reading_until
        return math.inf if lease.handoff else max(lease.expiry, lease.reading_until)

    def _let_go(self, lease: Lease) -> None:
        if lease.identifier not in self._leases:
            return
        lease.released = True
        self._sweep_at = min(self._sweep_at, lease.reading_until)
        if lease.reading_until <= self._clock():
            self._end(lease, "released")

    def _end(self, lease: Lease, how: Ending) -> None:
        del self._leases[lease.identifier]
        for family in [name for name, last in self._families.items() if last is lease]:
            del self._families[family]
        if not lease.handoff:
            self.counts[how] += 1
            self._held -= 1
            self._held_tokens -= lease.tokens
        self._ended[lease.identifier] = how.replace("_", "-")
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        self._leaving[lease.request] = lease
        self._deadlines[lease.request] = 0.0
