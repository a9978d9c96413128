"""The load is what it says: sizes, growing histories, no two conversations alike."""

from __future__ import annotations

import itertools
from statistics import mean

import orjson
import pytest

from bench.router import bodies
from bench.router.messages import text

SIZES = (4 << 10, 100 << 10, 400 << 10)


@pytest.mark.parametrize("new", [bodies.MIX, bodies.TWO_LEGS, ()], ids=["mix", "two-legs", "first"])
@pytest.mark.parametrize("size", SIZES)
def test_the_mean_body_has_the_named_size(size: int, new: tuple[int, ...]) -> None:
    for turns in bodies.variants(size, new, 16):
        assert len(turns) == len(new) + 1
        assert mean(turn.size for turn in turns) == pytest.approx(size, rel=0.02)
        assert all(len(b"".join(turn.of(7))) == turn.size for turn in turns)


@pytest.mark.parametrize("size", SIZES)
def test_each_turn_extends_the_one_before_by_answer_and_message(size: int) -> None:
    for turns in bodies.variants(size, bodies.MIX, 16):
        parsed = [orjson.loads(b"".join(turn.of(3))) for turn in turns]
        for (early, late), new in zip(itertools.pairwise(parsed), bodies.MIX, strict=True):
            count = len(early["messages"])
            assert late["messages"][:count] == early["messages"]
            answer, message = late["messages"][count:]
            assert answer == {"role": "assistant", "content": text(16)}
            assert new <= len(message["content"].encode()) <= new + 20
        assert all(body["stream"] and body["model"] == "tiny" for body in parsed)


def test_short_messages_are_for_decode_alone_and_long_ones_are_not() -> None:
    """Against the router's default of 512 new tokens, at the stub's bytes per token."""
    from bench.router.stub import BYTES_PER_TOKEN

    answer = len(text(16))
    assert (bodies.SHORT + answer) / BYTES_PER_TOKEN < 512 / 2
    assert bodies.LONG / BYTES_PER_TOKEN > 512


def test_conversations_share_the_system_prompt_and_nothing_behind_it() -> None:
    source = bodies.conversations(4096, bodies.MIX, 16)
    taken = [next(source) for _ in range(3 * bodies.VARIANTS)]
    assert len({number for _, number in taken}) == len(taken)
    of_one_text = taken[0], taken[bodies.VARIANTS]
    first, other = (orjson.loads(b"".join(turns[0].of(number))) for turns, number in of_one_text)
    assert first["messages"][0] == other["messages"][0]
    assert first["messages"][1]["content"].split(":")[0] != other["messages"][1]["content"].split(":")[0]
    assert first["messages"][2:] == other["messages"][2:]


def test_a_later_source_goes_on_counting() -> None:
    first = next(bodies.conversations(4096, (), 16))[1]
    assert next(bodies.conversations(4096, (), 16))[1] > first
