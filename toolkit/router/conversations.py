"""The map of conversations: key -> the KV handle that decode left at the end of the last turn.

A handle is taken out when it is used: blocks that were read once may hold other tokens afterwards.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

# Measured cost of one entry's key, record and links beside the handle's own bytes.
ENTRY_OVERHEAD_BYTES = 400


@dataclass(frozen=True, slots=True)
class Handle:
    """Decode's transfer parameters as JSON, the decode leg that holds the blocks, and since when."""

    params: bytes
    leg: str
    saved_at: float


class Conversations:
    """Bounded by count, by bytes and by age. Times are seconds of a monotonic clock of the caller.

    `events` counts saved, replaced, hit, miss, expired, evicted, returned.
    """

    def __init__(self, *, ttl_s: float, max_count: int, max_bytes: int) -> None:
        self._ttl_s = ttl_s
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Handle] = OrderedDict()
        self._bytes = 0
        self.events: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def put(self, key: bytes, handle: Handle) -> None:
        """Keeps the newest handle of a conversation; the oldest ones leave when the map is full."""
        self.events["saved"] += 1
        if self._pop(key) is not None:
            self.events["replaced"] += 1
        self._entries[key] = handle
        self._bytes += _cost(handle)
        self.expire(handle.saved_at)
        while self._entries and (len(self._entries) > self._max_count or self._bytes > self._max_bytes):
            self._drop_oldest("evicted")

    def take(self, key: bytes, now: float) -> Handle | None:
        """The handle, which leaves the map: a second caller gets None."""
        handle = self._pop(key)
        if handle is not None and now - handle.saved_at >= self._ttl_s:
            self.events["expired"] += 1
            handle = None
        self.events["miss" if handle is None else "hit"] += 1
        return handle

    def give_back(self, key: bytes, handle: Handle) -> None:
        """Returns a handle that no engine was sent. It keeps its age, and a newer one wins."""
        if key in self._entries:
            return
        self.events["returned"] += 1
        self._entries[key] = handle
        self._entries.move_to_end(key, last=False)
        self._bytes += _cost(handle)

    def expire(self, now: float) -> None:
        """Drops what is too old; cheap enough to call on every put."""
        while self._entries and now - next(iter(self._entries.values())).saved_at >= self._ttl_s:
            self._drop_oldest("expired")

    def _pop(self, key: bytes) -> Handle | None:
        handle = self._entries.pop(key, None)
        if handle is not None:
            self._bytes -= _cost(handle)
        return handle

    def _drop_oldest(self, event: str) -> None:
        _, handle = self._entries.popitem(last=False)
        self._bytes -= _cost(handle)
        self.events[event] += 1


def _cost(handle: Handle) -> int:
    return len(handle.params) + ENTRY_OVERHEAD_BYTES
