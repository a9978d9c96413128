"""A router's live parts as plain objects, and a finished request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from toolkit.router.observe.live import Limits, Live
from toolkit.router.observe.metrics import Metrics
from toolkit.router.observe.record import RequestRecord


@dataclass
class Leg:
    role: str
    url: str
    healthy: bool = True
    draining: bool = False
    in_flight: int = 0
    pending_tokens: int = 0


class Conversations:
    bytes = 900

    def __init__(self) -> None:
        self.events = Counter(saved=4, hit=2)

    def __len__(self) -> int:
        return 3


@dataclass
class Parts:
    """What `live` reads; change it and look again."""

    legs: list[Leg] = field(
        default_factory=lambda: [Leg("prefill", "http://p:1"), Leg("decode", "http://d:1")]
    )
    conversations: Conversations = field(default_factory=Conversations)
    admission: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(running=2, waiting=1))
    in_flight: int = 5
    leases: Counter[str] = field(default_factory=Counter)

    @property
    def live(self) -> Live:
        return Live(
            legs=lambda: self.legs,
            conversations=self.conversations,
            admission=self.admission,
            in_flight=lambda: self.in_flight,
            limits=Limits(running=8, waiting=16, conversations=100, map_bytes=4096),
            leases=lambda: self.leases,
        )


@pytest.fixture
def parts():
    return Parts()


@pytest.fixture
def leg():
    """Makes a leg: `leg(role, url, healthy=..., draining=..., in_flight=..., pending_tokens=...)`."""
    return Leg


@pytest.fixture
def metrics(parts):
    return Metrics(parts.live)


@pytest.fixture
def ended():
    """Makes a record that has ended half a second after its start: `ended(path="prefill", ...)`; `at` in
    Unix seconds."""

    def make(at=1000.0, **fields):
        record = RequestRecord("id-1", 100.0)
        for name, value in fields.items():
            setattr(record, name, value)
        record.end(100.5, at)
        return record

    return make
