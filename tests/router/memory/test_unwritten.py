"""What waits for the map's file leaves the same table as every change in turn, with fewer writes."""

from __future__ import annotations

import random

import pytest

from toolkit.router.memory.handle import Handle
from toolkit.router.memory.records import Entry, Held
from toolkit.router.memory.unwritten import Unwritten
from toolkit.router.request.identity import KEY_BYTES

LEGS = ("http://d0", "http://d1")
HANDLE = Handle.pack(
    {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 1,
    }
)


Table = dict[bytes, tuple[str, int, bool]]
BEFORE: Table = {b"\3" * KEY_BYTES: (LEGS[0], -1, True)}
"""key -> (leg, tokens, whether there is a handle)"""


def some_changes(seed):
    """As a journal is told of a few conversations on two legs: the method's name and its argument."""
    draw = random.Random(seed)
    changes = []
    for number in range(draw.randrange(60)):
        key = bytes([draw.randrange(4)]) * KEY_BYTES
        leg = draw.choice(LEGS)
        entry = Entry(key, b"", False, b"", Held(leg, HANDLE, number, number, 0.0, 0.0))
        changes.append(
            draw.choice([("saved", entry), ("handle_left", key), ("removed", key), ("leg_dropped", leg)])
        )
    return changes


def told(changes):
    unwritten = Unwritten()
    for name, what in changes:
        getattr(unwritten, name)(what)
    return unwritten


def table_in_turn(changes):
    table = dict(BEFORE)
    for name, what in changes:
        if name == "saved":
            table[what.key] = (what.held.leg, what.held.tokens, what.held.handle is not None)
        elif name == "handle_left" and what in table:
            table[what] = (*table[what][:2], False)
        elif name == "removed":
            table.pop(what, None)
        elif name == "leg_dropped":
            table = {key: row for key, row in table.items() if row[0] != what}
    return table


def table_written(unwritten):
    table = {key: row for key, row in BEFORE.items() if row[0] not in unwritten.legs}
    for key, entry in unwritten.rows.items():
        table.pop(key, None)
        if entry is not None:
            table[key] = (entry.held.leg, entry.held.tokens, key not in unwritten.taken)
    for key in unwritten.taken - set(unwritten.rows):
        if key in table:
            table[key] = (*table[key][:2], False)
    return table


@pytest.mark.parametrize("seed", range(200))
def test_the_table_is_the_same(seed):
    changes = some_changes(seed)
    assert table_written(told(changes)) == table_in_turn(changes)


@pytest.mark.parametrize("seed", range(200))
def test_what_could_not_be_written_goes_with_what_comes_after(seed):
    changes = some_changes(seed)
    middle = random.Random(seed).randrange(len(changes) + 1)
    unwritten = told(changes[:middle])
    unwritten.then(told(changes[middle:]))
    assert table_written(unwritten) == table_in_turn(changes)


def test_a_conversation_is_written_once_however_many_turns_it_had():
    key = b"\1" * KEY_BYTES
    unwritten = Unwritten()
    for number in range(10):
        unwritten.saved(Entry(key, b"", False, b"", Held(LEGS[0], HANDLE, number, 0, 0.0, 0.0)))
        unwritten.handle_left(key)
    assert [entry.held.tokens for entry in unwritten.rows.values()] == [9]
    assert unwritten.taken == {key}
