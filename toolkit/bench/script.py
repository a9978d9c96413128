"""What the user says in a conversation, sized in the engine's own tokens before the conversation starts.

It depends on the schedule and the tokenizer only, never on replies, so both legs say the same words.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from toolkit.bench.text import words
from toolkit.errors import ToolkitError
from toolkit.plan.sweep import Conversation, Schedule

Message = dict[str, str]
# Tokens of a prompt of these messages, chat template and generation prompt included.
CountTokens = Callable[[list[Message]], Awaitable[int]]

CALIBRATION_WORDS = 200
TOLERANCE = 0.01
MAX_TRIES = 16


@dataclass(frozen=True)
class Scale:
    """Tokens that one more word adds, for the messages that need not be exact."""

    tokens_per_word: float

    def count(self, tokens: int) -> int:
        return max(1, round(tokens / self.tokens_per_word))


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


async def measure_scale(count_tokens: CountTokens) -> Scale:
    one = await count_tokens([user(words(0, 0, 1))])
    many = await count_tokens([user(words(0, 0, CALIBRATION_WORDS))])
    if many <= one:
        raise ToolkitError(
            f"/tokenize counts {many} tokens for {CALIBRATION_WORDS} words and {one} for one word",
            next_step="check that the engine behind the router tokenizes chat messages",
        )
    return Scale((many - one) / (CALIBRATION_WORDS - 1))


async def write_script(
    conversation: Conversation, schedule: Schedule, scale: Scale, count_tokens: CountTokens
) -> list[str]:
    """The user's messages, one a turn: the prompt of the last turn has `prompt_length` tokens, at most
    1 % fewer, if replies tokenize to about as many tokens as they were generated from.

    Raises ToolkitError if no text of that length is found.
    """
    say = partial(words, conversation.seed)
    later = [say(turn, scale.count(schedule.turn_tokens)) for turn in range(2, schedule.turns + 1)]
    stand_in = say(0, scale.count(schedule.output_tokens))
    rest = [message for text in later for message in (assistant(stand_in), user(text))]

    async def last_prompt(size: int) -> int:
        return await count_tokens([user(say(1, size)), *rest])

    size = await fit(last_prompt, conversation.prompt_length, scale)
    return [say(1, size), *later]


async def fit(tokens_of: Callable[[int], Awaitable[int]], target: int, scale: Scale) -> int:
    """The number of words for `target` tokens, never more (the model's context may end there) and at most
    1 % fewer. Each miss moves by the slope last seen, within the bounds that misses have set."""
    least = target - max(1, int(target * TOLERANCE))
    below, above, slope = 0, sys.maxsize, scale.tokens_per_word
    # From well below: an engine refuses prompts longer than its context.
    size = max(1, scale.count(target) // 2)
    seen: tuple[int, int] | None = None
    for _ in range(MAX_TRIES):
        tokens = await tokens_of(size)
        if least <= tokens <= target:
            return size
        if seen is not None and size != seen[0] and tokens != seen[1]:
            slope = abs((tokens - seen[1]) / (size - seen[0]))
        seen = (size, tokens)
        below, above = (size, above) if tokens < least else (below, size)
        aim = size + round(((target + least) / 2 - tokens) / slope)
        size = min(max(aim, below + 1), above - 1)
        if size <= below:
            break
    raise ToolkitError(
        f"no first message gives a last prompt of {target} tokens (within 1 %)",
        next_step="raise sweep.prompt_lengths, or lower turns, output_tokens or turn_tokens of sweep",
    )
