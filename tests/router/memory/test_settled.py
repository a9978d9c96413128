"""What the map's file writes of a batch: the same table as every change in turn, with fewer writes."""

from __future__ import annotations

import random

import pytest

from toolkit.router.memory import mapfile
from toolkit.router.memory.handle import Handle
from toolkit.router.memory.mapfile import settled
from toolkit.router.memory.records import Entry, Held
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


def some_changes(seed):
    """As a journal is told of a few conversations on two legs."""
    draw = random.Random(seed)
    changes = []
    for number in range(draw.randrange(60)):
        key = bytes([draw.randrange(4)]) * KEY_BYTES
        leg = draw.choice(LEGS)
        held = Held(leg, HANDLE, number, number, 0.0, 0.0)
        changes.append(
            draw.choice(
                [
                    (mapfile._SAVE, Entry(key, b"", False, b"", held)),
                    (mapfile._HANDLE_LEFT, (key,)),
                    (mapfile._REMOVE, (key,)),
                    (mapfile._DROP_LEG, (leg,)),
                ]
            )
        )
    return changes


def table_after(changes):
    """key -> (leg, tokens, whether there is a handle), by the meaning of the statements."""
    table = {b"\3" * KEY_BYTES: (LEGS[0], -1, True)}
    for statement, values in changes:
        if statement is mapfile._SAVE:
            held = values.held
            table[values.key] = (held.leg, held.tokens, held.handle is not None)
        elif statement is mapfile._HANDLE_LEFT and values[0] in table:
            table[values[0]] = (*table[values[0]][:2], False)
        elif statement is mapfile._REMOVE:
            table.pop(values[0], None)
        elif statement is mapfile._DROP_LEG:
            table = {key: row for key, row in table.items() if row[0] != values[0]}
    return table


@pytest.mark.parametrize("seed", range(200))
def test_the_table_is_the_same(seed):
    changes = some_changes(seed)
    assert table_after(settled(changes)) == table_after(changes)


def test_a_conversation_is_written_once_however_many_turns_it_had():
    key = b"\1" * KEY_BYTES
    turns = [
        change
        for number in range(10)
        for change in (
            (mapfile._SAVE, Entry(key, b"", False, b"", Held(LEGS[0], HANDLE, number, 0, 0.0, 0.0))),
            (mapfile._HANDLE_LEFT, (key,)),
        )
    ]
    ((statement, entry),) = settled(turns)
    assert (statement, entry.held.tokens, entry.held.handle) == (mapfile._SAVE, 9, None)
