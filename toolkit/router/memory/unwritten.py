"""PURE: what of the map is not in its file yet: of each conversation its latest state."""

from __future__ import annotations

from toolkit.router.memory.records import Entry


class Unwritten:
    """To be written in the order of its attributes.

    Attributes:
        legs: all rows of these go.
        rows: the rows of these conversations are new, or go (None).
        taken: the rows of these keep everything but their handle; those of `rows` lose it before they are
            written.
    """

    __slots__ = ("legs", "rows", "taken")

    def __init__(self) -> None:
        self.legs: set[str] = set()
        self.rows: dict[bytes, Entry | None] = {}
        self.taken: set[bytes] = set()

    def __len__(self) -> int:
        """Rows that will be touched, about."""
        return len(self.legs) + len(self.rows) + len(self.taken)

    def saved(self, entry: Entry) -> None:
        self.rows[entry.key] = entry
        self.taken.discard(entry.key)

    def handle_left(self, key: bytes) -> None:
        self.taken.add(key)

    def removed(self, key: bytes) -> None:
        self.rows[key] = None
        self.taken.discard(key)

    def leg_dropped(self, leg: str) -> None:
        self.legs.add(leg)
        for key, entry in self.rows.items():
            if entry is not None and entry.held.leg == leg:
                # There may be an older row of another leg.
                self.rows[key] = None

    def then(self, later: Unwritten) -> None:
        """Takes in what happened after all of this."""
        for leg in later.legs:
            self.leg_dropped(leg)
        self.rows.update(later.rows)
        self.taken.difference_update(later.rows)
        self.taken |= later.taken
