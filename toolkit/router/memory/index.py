"""Keys to small numbers, for millions of keys: 8 bytes an entry, and no rebuild that stops the event loop."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

ENTRY_BYTES = 9
"""An entry, and what an array keeps free."""
MOST_NUMBER = (1 << 28) - 1

_NUMBER_BITS = 28
_PRINT_BITS = 32
_SHARD_BITS = 10
_PRINT = (1 << _PRINT_BITS) - 1
_SHARD = (1 << _SHARD_BITS) - 1


class KeyIndex:
    """A key may have several numbers. Of a key only 42 bits are kept (hashed with the process's seed), so
    whoever looks one up sees for himself whether what he finds has it."""

    def __init__(self) -> None:
        # Sorted; each entry is 32 bits of the key's hash, then the number. A thousand short arrays, because
        # what lies behind a new entry is moved.
        self._shards: list[array[int]] = [array("Q") for _ in range(_SHARD + 1)]

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def numbers(self, key: bytes) -> list[int]:
        """The key's numbers, ascending; rarely those of another key, too."""
        hashed = hash(key)
        shard = self._shards[hashed & _SHARD]
        lowest = (hashed >> _SHARD_BITS & _PRINT) << _NUMBER_BITS
        at = bisect_left(shard, lowest)
        found = []
        while at < len(shard) and (number := shard[at] - lowest) <= MOST_NUMBER:
            found.append(number)
            at += 1
        return found

    def first(self, keys: Iterable[bytes]) -> tuple[int, list[int]] | None:
        """The first of the keys that has numbers: its place among them, and `numbers` of it."""
        shards = self._shards
        for place, key in enumerate(keys):
            hashed = hash(key)
            shard = shards[hashed & _SHARD]
            lowest = (hashed >> _SHARD_BITS & _PRINT) << _NUMBER_BITS
            at = bisect_left(shard, lowest)
            if at < len(shard) and shard[at] - lowest <= MOST_NUMBER:
                return place, self.numbers(key)
        return None

    def add(self, key: bytes, number: int) -> None:
        """One more number of the key, up to MOST_NUMBER; the same one may be added again."""
        shard, entry = self._entry(key, number)
        shard.insert(bisect_left(shard, entry), entry)

    def remove(self, key: bytes, number: int) -> None:
        """Takes back one `add`.

        Raises:
            KeyError: there was none.
        """
        shard, entry = self._entry(key, number)
        at = bisect_left(shard, entry)
        if at == len(shard) or shard[at] != entry:
            raise KeyError(key)
        del shard[at]

    def _entry(self, key: bytes, number: int) -> tuple[array[int], int]:
        hashed = hash(key)
        entry = (hashed >> _SHARD_BITS & _PRINT) << _NUMBER_BITS | number
        return self._shards[hashed & _SHARD], entry
