"""Digests: what they tell apart, and that their wire form is fixed."""

import dataclasses
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_connector.proof import (
    BLOCK_DIGEST_BYTES,
    NEARNESS,
    Context,
    block_digests,
    common_blocks,
    decode,
    encode,
    marks,
    prompt_digest,
)

CONTEXT = Context("model", 16)
TOKENS = random.Random(0).sample(range(150_000), 100)


def common(mine: bytes, theirs: bytes) -> int:
    return common_blocks(mine, theirs, len(theirs) // BLOCK_DIGEST_BYTES)


def test_only_whole_blocks_have_a_digest() -> None:
    lengths = [
        len(block_digests(TOKENS[:n], CONTEXT)) // BLOCK_DIGEST_BYTES for n in (0, 15, 16, 17, 31, 32, 100)
    ]
    assert lengths == [0, 0, 1, 1, 1, 2, 6]


def test_digests_of_a_prefix_are_a_prefix() -> None:
    assert block_digests(TOKENS, CONTEXT).startswith(block_digests(TOKENS[:50], CONTEXT))


@pytest.mark.parametrize("place", range(0, 96, 5))
def test_one_changed_token_ends_the_common_blocks_there(place: int) -> None:
    changed = [*TOKENS[:place], TOKENS[place] + 1, *TOKENS[place + 1 :]]
    mine, theirs = block_digests(TOKENS, CONTEXT), block_digests(changed, CONTEXT)
    assert common(mine, theirs) == place // 16


def test_blocks_that_agree_again_after_a_change_are_not_common() -> None:
    mine = block_digests(TOKENS, CONTEXT)
    theirs = block_digests([0, *TOKENS[1:]], CONTEXT)
    assert not any(mine[i : i + 8] == theirs[i : i + 8] for i in range(0, len(mine), 8))


def test_shifted_tokens_have_nothing_in_common() -> None:
    mine = block_digests(TOKENS, CONTEXT)
    assert common(mine, block_digests(TOKENS[1:], CONTEXT)) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"block_size": 8},
        {"cache_salt": "a"},
        {"lora": "a"},
        {"media": ("a",)},
    ],
    ids=str,
)
def test_everything_of_the_context_counts(change: dict[str, object]) -> None:
    other = dataclasses.replace(CONTEXT, **change)  # type: ignore[arg-type]
    assert common(block_digests(TOKENS, CONTEXT), block_digests(TOKENS, other)) == 0
    assert prompt_digest(TOKENS, CONTEXT) != prompt_digest(TOKENS, other)


def test_fields_do_not_run_into_each_other() -> None:
    assert Context("m", 16, "a", None).salt() != Context("m", 16, None, "a").salt()
    assert Context("m", 16, media=("a", "b")).salt() != Context("m", 16, media=("a,b",)).salt()


def test_the_wire_form_does_not_change_unnoticed() -> None:
    """Engines of two releases compare these; another value needs another FORMAT."""
    assert block_digests(range(32), CONTEXT).hex() == "f1bf85f86dc96fa13bfc0d735584178a"
    assert prompt_digest(range(20), CONTEXT).hex() == "d275edbad03891e97535cbb44776f241"


def test_digests_travel_as_base64() -> None:
    digests = block_digests(TOKENS, CONTEXT)
    assert decode(encode(digests)) == digests
    for wrong in ("*", "abc", "ä"):
        with pytest.raises(ValueError):
            decode(wrong)


@pytest.mark.parametrize("blocks", [0, 1, NEARNESS, 2 * NEARNESS, 2 * NEARNESS + 1])
def test_in_a_short_history_each_block_has_its_digest(blocks: int) -> None:
    assert marks(blocks) == list(range(1, blocks + 1))


@pytest.mark.parametrize("blocks", [34, 100, 1500, 6250, 62_500, 1_000_000])
def test_digests_lie_the_denser_the_nearer_the_end_and_stay_few(blocks: int) -> None:
    places = marks(blocks)
    assert places == sorted(set(places))
    assert places[0] > 0
    assert places[-2 * NEARNESS :] == list(range(blocks - 2 * NEARNESS + 1, blocks + 1))
    assert all((b - a - 1) * NEARNESS < blocks - b + 1 for a, b in itertools.pairwise([0, *places]))
    assert len(places) <= NEARNESS * (blocks // NEARNESS).bit_length() + NEARNESS


@given(st.integers(0, 3000), st.integers(1, 4), st.integers(0, 12_000))
def test_common_never_exceeds_what_is_equal_and_loses_little_of_what_is_computed_anew(
    blocks: int, size: int, edit: int
) -> None:
    context = Context("model", size)
    history = list(range(blocks * size))
    prompt = [*history[:edit], 70_000, *history[edit + 1 :]]
    found = common_blocks(block_digests(prompt, context, blocks), block_digests(history, context), blocks)
    same = min(edit // size, blocks)
    assert found <= same
    assert found == max((mark for mark in marks(blocks) if mark <= same), default=0)
    assert found == same or (same - found) * NEARNESS < blocks - same
