"""What the client says: the same for a seed, and of the right size."""

from __future__ import annotations

import asyncio

import pytest

from toolkit.bench.script import Message, Scale, fit, measure_scale, user, write_script
from toolkit.bench.text import words
from toolkit.errors import ToolkitError
from toolkit.plan.sweep import Conversation, Schedule


async def count(messages: list[Message]) -> int:
    """Three tokens a word, ten a message."""
    return sum(3 * len(message["content"].split()) + 10 for message in messages)


def test_words_are_seeded_and_grow_from_their_beginning() -> None:
    assert words(1, 1, 50) == words(1, 1, 50)
    assert words(1, 1, 50).startswith(words(1, 1, 20) + " ")
    assert len(words(1, 1, 50).split()) == 50
    assert words(1, 1, 50) != words(2, 1, 50)
    assert words(1, 1, 50) != words(1, 2, 50)


def test_scale_is_tokens_per_word() -> None:
    assert asyncio.run(measure_scale(count)).tokens_per_word == 3


def test_scale_of_an_engine_that_counts_nothing() -> None:
    async def same(_: list[Message]) -> int:
        return 7

    with pytest.raises(ToolkitError, match="7 tokens"):
        asyncio.run(measure_scale(same))


def test_last_prompt_has_the_asked_length(schedule: Schedule) -> None:
    texts = asyncio.run(write_script(Conversation("900-0", 900, 5), schedule, Scale(3), count))
    # Two replies of 6 tokens are 2 words; two later messages of 20 tokens are 7 words.
    assert [len(text.split()) for text in texts[1:]] == [7, 7]
    rest = 2 * (3 * 2 + 10) + 2 * (3 * 7 + 10)
    assert 891 <= asyncio.run(count([user(texts[0])])) + rest <= 900


@pytest.mark.parametrize("target", [100, 1000, 24576])
@pytest.mark.parametrize("guess", [0.7, 1.0, 1.9])
def test_fit_from_a_wrong_guess_never_exceeds(target: int, guess: float) -> None:
    async def tokens(size: int) -> int:
        return round(size * 1.3) + 11

    size = asyncio.run(fit(tokens, target, Scale(guess)))
    assert target - max(1, target // 100) <= round(size * 1.3) + 11 <= target


def test_a_target_below_what_later_turns_need() -> None:
    async def tokens(size: int) -> int:
        return size + 500

    with pytest.raises(ToolkitError, match=r"last prompt of 100 tokens.*\n.*raise sweep.prompt_lengths"):
        asyncio.run(fit(tokens, 100, Scale(1)))
