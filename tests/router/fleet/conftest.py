"""What the tests of the fleet share: a clock to turn, and decode engines' lease routes without HTTP."""

import asyncio
import json
from collections import Counter

import pytest

from toolkit.router.fleet.legs import Leg
from toolkit.router.wire.client import Answer, EngineFailed


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Engines:
    """An EngineClient whose engines answer /health and the lease routes; `says` changes one answer.

    says: (url, path) -> a status, a body, an exception, or an event to wait for.
    """

    def __init__(self):
        self.asked = []
        self.says = {}
        self.states = {}

    async def whole(self, leg, method, path, headers, body, timeout_s):
        assert timeout_s > 0
        self.asked.append((leg.url, method, path, headers, body))
        said = self.says.get((leg.url, path), 200)
        if isinstance(said, asyncio.Event):
            await said.wait()
            said = 200
        if isinstance(said, str):
            raise EngineFailed(leg, said, sent=True, status=None)
        if isinstance(said, bytes):
            return Answer(200, [], said)
        if said != 200 or method == "GET":
            return Answer(said, [], b"")
        return Answer(200, [], json.dumps({"leases": self._leases(path, body)}).encode())

    def _leases(self, path, body):
        good = {"ok": True, "state": path.rpartition("/")[2], "seconds": 480.0}
        return {
            name: {"ok": False, "state": self.states[name]} if name in self.states else good
            for name in json.loads(body)["leases"]
        }

    def batches(self, operation):
        return [
            json.loads(body)["leases"] for _, _, path, _, body in self.asked if path.endswith("/" + operation)
        ]

    def names(self, operation):
        return Counter(name for batch in self.batches(operation) for name in batch)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engines():
    return Engines()


@pytest.fixture
def decode():
    leg = Leg("decode", "http://d:1")
    leg.note_check(True, 1)
    return leg
