"""Which decode engine keeps a stored response: the next turn that names it can only be answered there."""

from __future__ import annotations

from collections import OrderedDict

MOST = 100_000


class StoredResponses:
    """Response ids and their engines, each for the credential that made it; the oldest leave first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._legs: OrderedDict[tuple[bytes, str], str] = OrderedDict()

    def note(self, tenant: bytes, response_id: str, leg_url: str) -> None:
        """The engine at `leg_url` has answered this response, and may have stored it."""
        self._legs[tenant, response_id] = leg_url
        if len(self._legs) > self._most:
            self._legs.popitem(last=False)

    def leg_of(self, tenant: bytes, response_id: str) -> str | None:
        return self._legs.get((tenant, response_id))
