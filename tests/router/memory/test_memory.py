"""The map's own account of its memory, against what Python allocates."""

import gc
import tracemalloc

import pytest

from toolkit.router.memory.conversations import Conversations
from toolkit.router.memory.records import Held

COUNT = 1500
"""So many that what other threads of the test process allocate meanwhile does not show."""


def fill(conversations, make_keys, turn_count, make_handle):
    for turn in range(1, turn_count + 1):
        for number in range(COUNT):
            # Numbers of its own, as of a conversation that came at its own time.
            now, tokens = 1.0 + number, 24_000 + number
            held = Held("http://d", make_handle(number), tokens, 4 * tokens, now, now, tokens - 1000)
            conversations.save(make_keys(number, turn), held)


@pytest.mark.parametrize("kind", ["long", "short", "nothing held", "prompts", "names"])
@pytest.mark.parametrize("turn_count", [1, 4])
def test_bytes_are_what_is_allocated(kind, turn_count, clock, turns, make_handle):
    blocks = {"long": 1500, "nothing held": None}.get(kind, 187)

    def keys(number, turn):
        if kind == "prompts":
            return turns.prompt(f"{number:5} " * 100 * turn)
        return turns.chat(
            str(number), *map(str, range(turn - 1)), name=str(number) if kind == "names" else None
        )

    def handle(number):
        return None if blocks is None else make_handle(f"lease-{number:016}", blocks=blocks, seed=number)

    tracemalloc.start()
    try:
        conversations = Conversations(1e9, 1 << 20, 1 << 40, clock)
        gc.collect()
        empty, _ = tracemalloc.get_traced_memory()
        fill(conversations, keys, turn_count, handle)
        gc.collect()
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(conversations) == COUNT
    assert 0.8 < conversations.bytes / (allocated - empty) < 1.25


def test_a_conversation_of_24k_tokens_takes_less_than_6_kb(clock, turns, make_handle):
    said = [str(number) for number in range(8)]
    conversations = Conversations(1e9, 1 << 20, 1 << 40, clock)
    for turn in range(1, 9):
        conversations.save(
            turns.chat(*said[:turn]), Held("http://d", make_handle(), 24_000, 96_000, 1.0, 1.0)
        )
    assert 4500 < conversations.bytes < 6000
