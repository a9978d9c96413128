"""PURE: how much of a request's history comes after the turns that a conversation's engine has seen.

A name says whose conversation a request continues, not that it continues it word for word; and a branch from
an early turn shares that turn only. What decode would have to compute is told by the histories alone.
"""

from __future__ import annotations

from toolkit.router.memory.conversation import END_BYTES, ID_BYTES, MOST_ENDS, Conversation
from toolkit.router.request.identity import TENANT_BYTES, Keys


def new_bytes(keys: Keys, conversation: Conversation, place: int) -> int | None:
    """Bytes of the request's history after the latest turn that both have; None: that is the conversation's
    newest one, or it cannot be told.

    place: of the key that found the conversation, in `found_by`.
    """
    if conversation.named:
        ends = conversation.ends
        if not ends or keys.end is None:
            return None
        turns, after = _shared(keys, ends)
        return None if turns * END_BYTES == len(ends) else after
    found_by = conversation.found_by()
    if place + 1 == len(found_by):
        return None
    length = conversation.lengths()[place][1] if keys.text is not None else 0
    return _after(keys, found_by[place], length)


def ends_of_named(keys: Keys, earlier: Conversation | None) -> bytes:
    """Where the latest turns of a named conversation ended, with this one: for each the digest of its
    history, and of a prompt's text the length."""
    if keys.end is None:
        return b""
    known = b""
    if earlier is not None:
        known = earlier.ends[: _shared(keys, earlier.ends)[0] * END_BYTES]
    digest = keys.end[TENANT_BYTES:]
    if known[-END_BYTES:-4] != digest:
        length = 0 if keys.text is None else keys.text.length
        known += digest + length.to_bytes(4, "little")
    return known[-MOST_ENDS * END_BYTES :]


def _shared(keys: Keys, ends: bytes) -> tuple[int, int]:
    """How many of these turns the history goes on from, and its bytes after the last one of them."""
    assert keys.end is not None
    tenant = keys.end[:TENANT_BYTES]
    for turns in range(len(ends) // END_BYTES, 0, -1):
        end = ends[(turns - 1) * END_BYTES : turns * END_BYTES]
        after = _after(keys, tenant + end[:ID_BYTES], int.from_bytes(end[ID_BYTES:], "little"))
        if after is not None:
            return turns, after
    return 0, sum(keys.sizes) if keys.text is None else len(keys.text.body)


def _after(keys: Keys, key: bytes, length: int) -> int | None:
    """Bytes behind the turn that ended with this key; None: the history does not go on from it."""
    if key == keys.end:
        return 0
    if keys.text is None:
        return sum(keys.sizes[keys.chain.index(key) + 1 :]) if key in keys.chain else None
    if length > len(keys.text.body):
        return None
    (found,) = keys.text.keys_at([length])
    return len(keys.text.body) - length if found == key else None
