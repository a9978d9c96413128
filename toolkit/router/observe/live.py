"""The parts of a running router that are read, not told: protocols, so that observing needs no router."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class LegView(Protocol):
    """One engine server behind the router."""

    @property
    def role(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def healthy(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def pending_tokens(self) -> int:
        """Prompt tokens that it was sent to compute by itself and has not answered yet."""
        ...


class ConversationsView(Protocol):
    """The map of conversations."""

    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def events(self) -> Mapping[str, int]:
        """How often each event happened: saved, replaced, hit, miss, expired, evicted, returned, dropped."""
        ...


class AdmissionView(Protocol):
    """The places that requests take, and the queue before them."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What the router was started with: requests that run, requests that wait, and the size of the map."""

    running: int
    waiting: int
    conversations: int
    map_bytes: int


@dataclass(frozen=True, slots=True)
class Live:
    """Read anew at each scrape and each snapshot: legs come and go."""

    legs: Callable[[], Iterable[LegView]]
    conversations: ConversationsView
    admission: AdmissionView
    in_flight: Callable[[], int]
    limits: Limits
    # What became of leases on decode's blocks, by event.
    leases: Callable[[], Mapping[str, int]] = dict
