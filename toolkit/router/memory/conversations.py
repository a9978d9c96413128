"""The map of conversations: what the decode engines hold of earlier turns.

A conversation is found by the end of one of its latest turns, which a later request's history begins with.
Whoever reads a handle takes it out; the turn's answer brings the next one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from toolkit.router.memory.conversation import (
    END_BYTES,
    ID_BYTES,
    MOST_ENDS,
    ByUse,
    Conversation,
    Found,
    Home,
    size_of,
)
from toolkit.router.memory.directory import Directory
from toolkit.router.memory.handle import Handle
from toolkit.router.memory.index import MOST_NUMBER
from toolkit.router.memory.overlap import ends_of_named, new_bytes
from toolkit.router.memory.records import Entry, Held, Journal, Released
from toolkit.router.request.identity import KEY_BYTES, TENANT_BYTES, Keys

_EXPIRED_AT_ONCE = 1000
"""So that a full map that was long idle does not stop the event loop."""


class _Match(NamedTuple):
    conversation: Conversation
    place: int
    """Of the key among the conversation's."""


class Conversations:
    """Bounded by count, by bytes (least recently used go first) and by age.

    A request whose history goes on from a conversation's newest turn continues it: its save supersedes what
    was there. One that goes on from an earlier turn branches: it finds the same handle while nobody else has
    it, and its save stands beside the other branch, with the turns they share leading to the newer one.

    `events` counts saved, replaced (a handle that nobody read), hit, miss, expired, evicted, returned and
    dropped.
    """

    def __init__(
        self,
        ttl_s: float,
        max_count: int,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        handle_ttl_s: float | None = None,
        journal: Journal | None = None,
    ) -> None:
        """ttl_s: so long since its last use a conversation is remembered. handle_ttl_s: so long since it was
        saved a handle without a lease is offered (default: the same)."""
        self.ttl_s = ttl_s
        self._handle_ttl_s = ttl_s if handle_ttl_s is None else handle_ttl_s
        self._max_count = min(max_count, MOST_NUMBER)
        self._max_bytes = max_bytes
        self._clock = clock
        self._journal = journal or Journal()
        self._homes: dict[str, Home] = {}
        self._by_use = ByUse()
        self._directory = Directory()
        self._count = 0
        self._gone = 0
        self._bytes = 0
        self.events: Counter[str] = Counter()

    def __len__(self) -> int:
        """Conversations that can be found."""
        return self._count - self._gone

    @property
    def bytes(self) -> int:
        """Estimated memory of all of it."""
        return self._bytes

    def find(self, keys: Keys) -> Found | None:
        """What is held of the conversation that a request belongs to; the longest history in common wins."""
        if keys.explicit is None and keys.end is None:
            return None
        match = self._match(keys)
        self.events["miss" if match is None else "hit"] += 1
        if match is None:
            return None
        found = match.conversation
        held = found.held()
        if not self._fresh(found):
            held.handle = None
        self._by_use.remove(found)
        found.used_at = self._clock()
        self._by_use.add(found)
        return Found(held, found, new_bytes(keys, found, match.place))

    def take(self, found: Found) -> Handle | None:
        """The handle, for the one turn that will have prefill read it; None: another turn has it."""
        conversation = found.conversation
        handle = conversation.handle
        if handle is None or not self._counts(conversation) or not self._fresh(conversation):
            return None
        self._set_handle(conversation, None)
        return handle

    def give_back(self, found: Found, handle: Handle) -> list[Released]:
        """A taken handle that no engine was sent. A newer turn's wins; then this one's lease is returned."""
        conversation = found.conversation
        if not self._counts(conversation) or conversation.handle is not None:
            return _released(conversation.home.leg, handle, "superseded")
        self.events["returned"] += 1
        self._set_handle(conversation, handle)
        return self._shrink()

    def save(self, keys: Keys, held: Held) -> list[Released]:
        """Keeps what a turn left, under the end of its history or its name; answers with leases of no use.

        A turn that left no handle keeps the conversation's earlier one, if it is still there.
        """
        if keys.explicit is None and keys.end is None:
            return _released(held.leg, held.handle, "nameless")
        released = self.expire()
        self.events["saved"] += 1
        match = self._match(keys)
        if keys.explicit is not None:
            ids, ends = keys.explicit, ends_of_named(keys, None if match is None else match.conversation)
        else:
            ids, ends = _chained_ids(keys, match)
        conversation = Conversation(self._home(held.leg), ids, keys.explicit is not None, ends, held)
        handle = held.handle
        if match is not None:
            if handle is None:
                handle = self._inherited(conversation, match)
            released += self._pass_by(match, conversation)
        self._add(conversation, handle)
        self._journal.saved(conversation.entry())
        return released + self._shrink()

    def drop(self, found: Found, why: str = "dropped") -> list[Released]:
        """Forgets a conversation whose blocks are of no use."""
        if not self._counts(found.conversation):
            return []
        self.events["dropped"] += 1
        return self._remove(found.conversation, why)

    def drop_leg(self, leg: str) -> int:
        """Forgets all that a decode leg held (its engine restarted, or is gone): so many conversations."""
        home = self._homes.pop(leg, None)
        if home is None:
            return 0
        # Their memory comes free as they grow old; walking through them would stop the event loop.
        home.gone = True
        self._gone += home.conversations
        self.events["dropped"] += home.conversations
        self._journal.leg_dropped(leg)
        return home.conversations

    def expire(self) -> list[Released]:
        """Forgets what is too old, a bounded number at once."""
        released, latest = [], self._clock() - self.ttl_s
        for _ in range(_EXPIRED_AT_ONCE):
            oldest = self._by_use.oldest
            if oldest is None or oldest.used_at > latest:
                break
            released += self._remove(oldest, "expired")
        return released

    def lose(self, leg: str, lease: str) -> bool:
        """The holder ended a lease; its prefix cache may still have the blocks. False: it was not here."""
        for found in self._directory.with_lease(leg, lease):
            if not found.home.gone:
                self.events["dropped"] += 1
                self._set_handle(found, None)
                return True
        return False

    def entries(self) -> Iterator[Entry]:
        """All that can be found, the least recently used first. The map must not change meanwhile."""
        for found in self._by_use:
            if not found.home.gone:
                yield found.entry()

    def restore(self, entries: Iterable[Entry]) -> list[Released]:
        """Takes in what another process had, the least recently used first; what is too old is left out."""
        latest = self._clock() - self.ttl_s
        released = []
        for entry in entries:
            if entry.held.used_at <= latest:
                continue
            conversation = Conversation(
                self._home(entry.held.leg), entry.ids, entry.named, entry.ends, entry.held
            )
            matches: dict[Conversation, int] = {}
            for key in conversation.found_by():
                matches.update(self._directory.having(key))
            for earlier, place in matches.items():
                released += self._pass_by(_Match(earlier, place), conversation)
            self._add(conversation, entry.held.handle)
            released += self._shrink()
        return released

    def _match(self, keys: Keys) -> _Match | None:
        """Whoever shares the longest history with the request, and counts."""
        if keys.explicit is None and keys.text is None:
            for found, place in self._directory.longest(keys.chain):
                if self._remembered(found):
                    return _Match(found, place)
            return None
        key = keys.explicit or keys.end
        assert key is not None
        candidates = self._directory.having(key)
        if keys.explicit is None and keys.text is not None:
            candidates = chain(candidates, self._directory.ending_in(keys.text, keys.chain))
        for found, place in candidates:
            if self._remembered(found):
                return _Match(found, place)
        return None

    def _remembered(self, conversation: Conversation) -> bool:
        return not conversation.home.gone and self._clock() - conversation.used_at < self.ttl_s

    def _fresh(self, conversation: Conversation) -> bool:
        """Its handle may be read. Under a lease that is the holder's to say, and `lose` tells."""
        if self._clock() - conversation.saved_at < self._handle_ttl_s:
            return True
        return conversation.lease is not None

    def _counts(self, conversation: Conversation) -> bool:
        """It is in the map, and its leg was not dropped."""
        return conversation in self._by_use and not conversation.home.gone

    def _inherited(self, conversation: Conversation, match: _Match) -> Handle | None:
        """A handle that nobody reads covers a beginning of the new turn, too."""
        earlier, handle = match.conversation, match.conversation.handle
        continues = match.place + 1 == len(earlier.found_by())
        if handle is None or not continues or earlier.home is not conversation.home:
            return None
        conversation.saved_at = earlier.saved_at
        self._set_handle(earlier, None)
        return handle

    def _pass_by(self, match: _Match, newer: Conversation) -> list[Released]:
        """The turns up to a matched one lead to a newer conversation; one without any left is superseded."""
        conversation, turns = match.conversation, match.place + 1
        if turns < len(conversation.found_by()):
            self._bytes -= conversation.size
            self._directory.forget(conversation, turns)
            self._bytes += conversation.size
            return []
        if conversation.handle is not None:
            self.events["replaced"] += 1
        self._directory.hand_over(conversation, newer)
        return self._remove(conversation, "superseded")

    def _home(self, leg: str) -> Home:
        found = self._homes.get(leg)
        if found is None:
            found = self._homes[leg] = Home(leg)
        return found

    def _add(self, conversation: Conversation, handle: Handle | None) -> None:
        self._directory.enter(conversation)
        self._by_use.add(conversation)
        self._count += 1
        conversation.home.conversations += 1
        self._bytes += conversation.size
        self._put_handle(conversation, handle)

    def _remove(self, conversation: Conversation, why: str) -> list[Released]:
        home, handle = conversation.home, conversation.handle
        self._put_handle(conversation, None)
        self._directory.leave(conversation)
        self._by_use.remove(conversation)
        self._count -= 1
        self._bytes -= conversation.size
        home.conversations -= 1
        if home.gone:
            self._gone -= 1
            return []
        if why in ("expired", "evicted"):
            self.events[why] += 1
        self._journal.removed(conversation.key)
        return _released(home.leg, handle, why)

    def _shrink(self) -> list[Released]:
        released = []
        while self._count > self._max_count or self._bytes > self._max_bytes:
            assert self._by_use.oldest is not None
            released += self._remove(self._by_use.oldest, "evicted")
        return released

    def _set_handle(self, conversation: Conversation, handle: Handle | None) -> None:
        self._put_handle(conversation, handle)
        if handle is None:
            self._journal.handle_left(conversation.key)
        else:
            self._journal.saved(conversation.entry())

    def _put_handle(self, conversation: Conversation, handle: Handle | None) -> None:
        before, conversation.handle = conversation.handle, handle
        if before is not handle:
            self._bytes += size_of(handle) - size_of(before)
            leases = (None if one is None else one.lease for one in (before, handle))
            self._directory.note_lease(conversation, *leases)


def _released(leg: str, handle: Handle | None, why: str) -> list[Released]:
    lease = None if handle is None else handle.lease
    return [] if lease is None else [Released(leg, lease, why)]


def _chained_ids(keys: Keys, match: _Match | None) -> tuple[bytes, bytes]:
    """The latest turns' ends: those of the matched conversation up to the matched one, and this turn's."""
    assert keys.end is not None
    ids, ends = b"", b""
    if match is not None:
        known = match.conversation
        ids = known.ids[TENANT_BYTES : KEY_BYTES + match.place * ID_BYTES]
        ends = known.ends[: (match.place + 1) * END_BYTES]
    if keys.end[TENANT_BYTES:] != ids[-ID_BYTES:]:
        ids += keys.end[TENANT_BYTES:]
        ends += _end(keys)
    return keys.end[:TENANT_BYTES] + ids[-MOST_ENDS * ID_BYTES :], ends[-MOST_ENDS * END_BYTES :]


def _end(keys: Keys) -> bytes:
    """Where in a prompt's text this turn ends: the grid point before, and the length."""
    if keys.text is None:
        return b""
    return keys.chain[-1][TENANT_BYTES:] + keys.text.length.to_bytes(4, "little")
