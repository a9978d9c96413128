"""What the fleet needs of the HTTP client of wire/client.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toolkit.router.fleet.legs import Leg
from toolkit.router.wire.client import Answer


class Asks(Protocol):
    async def whole(
        self,
        leg: Leg,
        method: str,
        path: str,
        headers: bytes,
        body: bytes | Sequence[bytes] | None,
        timeout_s: float,
    ) -> Answer:
        """One request with its whole answer. Raises EngineFailed."""
        ...
