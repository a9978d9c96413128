"""The leases of a fake engine as our connector answers for them: who may read decode's blocks, until when."""

from __future__ import annotations

import json
import secrets
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

TTL_S = 480.0
OPERATIONS = ("renew", "claim", "release")
MOST_LEASES = 1024
_LIVE = ("held", "claimed")
_COUNTS = ("granted", "renewed", "claimed", "refused", "read", "released", "given_up", "expired")


@dataclass(frozen=True, slots=True)
class LeaseCall:
    """One request to a lease route."""

    operation: str
    names: tuple[str, ...]
    authorization: str | None
    status: int


@dataclass
class FakeLeases:
    """`states` may be changed by a test: what is not held or claimed can neither be renewed nor read.

    Attributes:
        secret: asked for as a bearer token, if any.
        status: every route answers this, if set.
        calls: what was asked.
        states: by name: held, claimed, read, released, given-up, expired; what is not in it is unknown.
    """

    secret: str | None = None
    status: int | None = None
    calls: list[LeaseCall] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    _tokens: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        """As after a restart: no lease is known any more."""
        self.secret = self.status = None
        self.calls.clear()
        self.forget()

    def forget(self) -> None:
        """The engine's memory is gone, its callers are not."""
        with self._lock:
            self.states.clear()
            self.counts.clear()
            self._tokens.clear()

    def grant(self, tokens: int) -> str:
        """A new lease's name."""
        name = secrets.token_urlsafe(16)
        with self._lock:
            self.states[name] = "held"
            self._tokens[name] = tokens
            self.counts["granted"] += 1
        with _lock:
            _holders[name] = self
        return name

    def release(self, name: str) -> bool:
        """Lets go of one; false when there is nothing to let go."""
        return self._end(name, "released")

    @property
    def held(self) -> list[str]:
        """The names of those that keep blocks."""
        return [name for name, state in self.states.items() if state in _LIVE]

    def counted(self) -> dict[str, int]:
        """What GET /pd/leases answers."""
        held = self.held
        tokens = sum(self._tokens.get(name, 0) for name in held)
        return {**{name: self.counts[name] for name in _COUNTS}, "held": len(held), "held_tokens": tokens}

    def answer(self, operation: str, raw: bytes, authorization: str | None) -> tuple[int, dict[str, Any]]:
        """Status and body of a lease route; `operation` "counts" is the GET."""
        status, body = self._answer(operation, raw, authorization)
        names = body.get("leases", ())
        self.calls.append(LeaseCall(operation, tuple(names), authorization, status))
        return status, body

    def _answer(self, operation: str, raw: bytes, authorization: str | None) -> tuple[int, dict[str, Any]]:
        if self.status is not None:
            return self.status, {"error": "injected"}
        if self.secret is not None and authorization != f"Bearer {self.secret}":
            return 401, {"error": "the lease secret is missing or wrong"}
        if operation == "counts":
            return 200, self.counted()
        try:
            names = json.loads(raw)["leases"]
        except (ValueError, TypeError, KeyError):
            names = None
        if not isinstance(names, list) or len(names) > MOST_LEASES:
            return 400, {"error": 'the body must be {"leases": ["...", ...]}'}
        return 200, {"leases": {name: self._step(operation, name) for name in names}}

    def _step(self, operation: str, name: str) -> dict[str, Any]:
        with self._lock:
            state = self.states.get(name, "unknown")
            usable = state in _LIVE and not (operation == "claim" and state == "claimed")
        if operation == "release":
            ok = self.release(name)
            return {"ok": ok, "state": self.states.get(name, "unknown")}
        if not usable:
            self.counts["refused"] += 1
            return {"ok": False, "state": state}
        if operation == "claim":
            self.states[name] = "claimed"
        self.counts["claimed" if operation == "claim" else "renewed"] += 1
        return {
            "ok": True,
            "state": self.states[name],
            "seconds": TTL_S,
            "remote_blocks_expiry_time": 1000.0 + TTL_S,
        }

    def _end(self, name: str, state: str) -> bool:
        with self._lock:
            if self.states.get(name) not in _LIVE:
                return False
            self.states[name] = state
            self.counts[state] += 1
            return True


_holders: WeakValueDictionary[str, FakeLeases] = WeakValueDictionary()
_lock = threading.Lock()


def read_lease(name: str) -> bool:
    """Reads the blocks of a lease, whichever engine of this process granted it; only while it is held."""
    with _lock:
        holder = _holders.get(name)
    return holder is not None and holder._end(name, "read")
