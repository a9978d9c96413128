"""One conversation in the map, a record of few objects, for there are 100,000 of them; and their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from toolkit.router.memory.handle import Handle
from toolkit.router.memory.index import ENTRY_BYTES
from toolkit.router.memory.records import Entry, Held
from toolkit.router.request.identity import KEY_BYTES, TENANT_BYTES

ID_BYTES = KEY_BYTES - TENANT_BYTES
END_BYTES = ID_BYTES + 4
MOST_ENDS = 8
"""Branches from one of the latest so many turns find the conversation."""

_RECORD_BYTES = 336
"""Measured: the record, its numbers and the headers of its bytes."""


class Home:
    """A decode leg during one life of its engine."""

    __slots__ = ("conversations", "gone", "leg")

    def __init__(self, leg: str) -> None:
        self.leg = leg
        self.gone = False
        self.conversations = 0


class Conversation:
    """What one saved turn left, between its neighbours by time of use. A new turn makes a new one.

    Attributes:
        ids, named, ends: as in Entry.
        number: its place in the map's list, and in its indexes.
    """

    __slots__ = (
        "ends",
        "handle",
        "history_bytes",
        "home",
        "ids",
        "named",
        "newer",
        "number",
        "older",
        "prompt_tokens",
        "saved_at",
        "tokens",
        "used_at",
    )

    older: Conversation | None
    newer: Conversation | None

    def __init__(self, home: Home, ids: bytes, named: bool, ends: bytes, held: Held) -> None:
        self.home = home
        self.number = -1
        self.ids = ids
        self.named = named
        self.ends = ends
        self.handle: Handle | None = None
        self.tokens = held.tokens
        self.history_bytes = held.history_bytes
        self.saved_at = held.saved_at
        self.used_at = held.used_at
        self.prompt_tokens = held.prompt_tokens
        self.older = self.newer = None

    @property
    def lease(self) -> str | None:
        """Of its handle."""
        return None if self.handle is None else self.handle.lease

    @property
    def key(self) -> bytes:
        """The client's name for it, or the end of its newest turn."""
        return self.ids if self.named else self.ids[:TENANT_BYTES] + self.ids[-ID_BYTES:]

    def found_by(self) -> list[bytes]:
        """The keys that find it, the oldest turn's first."""
        if self.named:
            return [self.ids]
        tenant = self.ids[:TENANT_BYTES]
        return [tenant + self.ids[at : at + ID_BYTES] for at in range(TENANT_BYTES, len(self.ids), ID_BYTES)]

    def lengths(self) -> list[tuple[bytes, int]]:
        """Where in a prompt's text those turns ended: the key of the grid point, and the length."""
        if self.named:
            return []
        tenant, parts = self.ids[:TENANT_BYTES], self.ends
        return [
            (
                tenant + parts[at : at + ID_BYTES],
                int.from_bytes(parts[at + ID_BYTES : at + END_BYTES], "little"),
            )
            for at in range(0, len(parts), END_BYTES)
        ]

    def place(self, key: bytes) -> int | None:
        """Which of `found_by` this is."""
        if not self.ids.startswith(key[:TENANT_BYTES]):
            return None
        wanted, at = key[TENANT_BYTES:], TENANT_BYTES - 1
        while (at := self.ids.find(wanted, at + 1)) > 0:
            if at % ID_BYTES == 0:
                return at // ID_BYTES - 1
        return None

    def forget(self, turns: int) -> None:
        """The ends of the oldest so many turns lead elsewhere now."""
        self.ids = self.ids[:TENANT_BYTES] + self.ids[TENANT_BYTES + turns * ID_BYTES :]
        self.ends = self.ends[turns * END_BYTES :]

    def held(self) -> Held:
        return Held(
            self.home.leg,
            self.handle,
            self.tokens,
            self.history_bytes,
            self.saved_at,
            self.used_at,
            self.prompt_tokens,
        )

    def entry(self) -> Entry:
        return Entry(self.key, self.ids, self.named, self.ends, self.held())

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, with what leads to it."""
        keys = 1 if self.named else len(self.ids) // ID_BYTES - 1
        lengths = 0 if self.named else len(self.ends) // END_BYTES
        own = _RECORD_BYTES + len(self.ids) + len(self.ends) + (keys + lengths) * ENTRY_BYTES
        return own + size_of(self.handle)


class Found(NamedTuple):
    """A conversation that a request continues, branches from or repeats."""

    held: Held
    conversation: Conversation
    new_bytes: int | None = None
    """Of the request's history after the latest turn that both have. None: that is the conversation's newest
    one, or it cannot be told."""


def size_of(handle: Handle | None) -> int:
    """Bytes that a conversation's handle adds to its own."""
    return 0 if handle is None else handle.size + ENTRY_BYTES


class ByUse:
    """Conversations in the order of their use, linked through themselves."""

    def __init__(self) -> None:
        self.oldest: Conversation | None = None
        self._newest: Conversation | None = None

    def __contains__(self, conversation: Conversation) -> bool:
        return conversation.older is not None or conversation is self.oldest

    def __iter__(self) -> Iterator[Conversation]:
        """The oldest first. The order must not change meanwhile."""
        conversation = self.oldest
        while conversation is not None:
            yield conversation
            conversation = conversation.newer

    def add(self, conversation: Conversation) -> None:
        """As the one used latest."""
        last = self._newest
        conversation.older = last
        conversation.newer = None
        if last is None:
            self.oldest = conversation
        else:
            last.newer = conversation
        self._newest = conversation

    def remove(self, conversation: Conversation) -> None:
        older, newer = conversation.older, conversation.newer
        if older is None:
            self.oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self._newest = older
        else:
            newer.older = older
        conversation.older = conversation.newer = None
