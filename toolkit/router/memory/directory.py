"""Where conversations are found: by key, by lease, and by the lengths of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from toolkit.router.memory.conversation import Conversation
from toolkit.router.memory.index import KeyIndex
from toolkit.router.request.identity import Text

_MOST_LENGTHS = 1024
"""Looked at for one grid point of one prompt: each costs a digest."""

Key = bytes
"""Of 32 bytes (request/identity.py)."""


class Directory:
    """Each conversation in it has a number. A key may be of several: one that counts no more stays until it
    is taken out."""

    def __init__(self) -> None:
        self._numbered: list[Conversation | None] = []
        self._free: list[int] = []
        self._by_key = KeyIndex()
        self._by_lease = KeyIndex()
        # Grid points of prompts' texts to the lengths at which turns ended after them.
        self._lengths = KeyIndex()

    def __len__(self) -> int:
        """How many keys lead to conversations."""
        return len(self._by_key)

    def enter(self, conversation: Conversation) -> None:
        """Unless it has taken over another's number."""
        if conversation.number >= 0:
            return
        if not self._free:
            self._free.append(len(self._numbered))
            self._numbered.append(None)
        conversation.number = self._free.pop()
        self._numbered[conversation.number] = conversation
        self._add(conversation, conversation.found_by(), conversation.lengths())

    def leave(self, conversation: Conversation) -> None:
        """Unless another has taken over its number."""
        if self._numbered[conversation.number] is conversation:
            self._remove(conversation, conversation.found_by(), conversation.lengths())
            self._numbered[conversation.number] = None
            self._free.append(conversation.number)

    def hand_over(self, conversation: Conversation, newer: Conversation) -> None:
        """The newer one gets the number, if it has none yet, so that the keys of both stay as they are."""
        if newer.number >= 0:
            return
        newer.number = conversation.number
        self._numbered[newer.number] = newer
        before, after = set(conversation.found_by()), set(newer.found_by())
        self._remove(conversation, before - after, conversation.lengths())
        self._add(newer, after - before, newer.lengths())

    def forget(self, conversation: Conversation, turns: int) -> None:
        """Its oldest so many turns lead to it no more."""
        self._remove(conversation, conversation.found_by()[:turns], conversation.lengths()[:turns])
        conversation.forget(turns)

    def note_lease(self, conversation: Conversation, before: str | None, after: str | None) -> None:
        leg, number = conversation.home.leg, conversation.number
        if before is not None:
            self._by_lease.remove(_lease_key(leg, before), number)
        if after is not None:
            self._by_lease.add(_lease_key(leg, after), number)

    def having(self, key: Key) -> Iterator[tuple[Conversation, int]]:
        """Whoever is found by exactly this key, and which of its keys it is."""
        return self._have(self._by_key.numbers(key), key)

    def longest(self, chain: Sequence[Key]) -> Iterator[tuple[Conversation, int]]:
        """As `having`, of each key of the chain, the last one first."""
        position = len(chain)
        while (hit := self._by_key.first(reversed(chain[:position]))) is not None:
            position -= hit[0] + 1
            yield from self._have(hit[1], chain[position])

    def ending_in(self, text: Text, points: Sequence[Key]) -> Iterator[tuple[Conversation, int]]:
        """Whoever's turn ended where this text has the same beginning, the longest first."""
        for point in reversed(points):
            numbers = self._lengths.numbers(point)
            lengths = sorted(length for length in {*numbers} if length <= len(text.body))[-_MOST_LENGTHS:]
            for key in reversed([*text.keys_at(lengths)]) if lengths else ():
                yield from self.having(key)

    def with_lease(self, leg: str, lease: str) -> Iterator[Conversation]:
        for number in self._by_lease.numbers(_lease_key(leg, lease)):
            found = self._numbered[number]
            if found is not None and found.home.leg == leg and found.lease == lease:
                yield found

    def _have(self, numbers: list[int], key: Key) -> Iterator[tuple[Conversation, int]]:
        for number in numbers:
            found = self._numbered[number]
            if found is not None and (place := found.place(key)) is not None:
                yield found, place

    def _add(
        self, conversation: Conversation, keys: Iterable[Key], lengths: Iterable[tuple[Key, int]]
    ) -> None:
        for key in keys:
            self._by_key.add(key, conversation.number)
        for point, length in lengths:
            self._lengths.add(point, length)

    def _remove(
        self, conversation: Conversation, keys: Iterable[Key], lengths: Iterable[tuple[Key, int]]
    ) -> None:
        for key in keys:
            self._by_key.remove(key, conversation.number)
        for point, length in lengths:
            self._lengths.remove(point, length)


def _lease_key(leg: str, lease: str) -> bytes:
    return f"{leg} {lease}".encode("utf-8", "surrogatepass")
