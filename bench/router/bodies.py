"""PURE: the requests of the load: conversations of agents, turn by turn, of a named mean size.

A conversation has a system prompt and a tool, then messages of user, assistant and tool. Each turn's request
is the one before with the answer and a new message appended. Conversations of one size share a few texts and
differ in a number at the start of the first user message, so that no two have a history in common beyond the
system prompt.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bench.router.messages import compact, text

VARIANTS = 4
NUMBER = "@conversation-no@"
"""Stands for the number of the conversation, which has as many digits."""
SHORT = 300
"""Bytes of a message that decode takes alone: far below 512 tokens."""
LONG = 3000
"""Bytes of a message that is worth prefill: above 512 tokens at the stub's 4 bytes a token."""
MIX = (SHORT, LONG, SHORT, LONG)
TWO_LEGS = (LONG, LONG)
PATHS = {SHORT: "decode-local", LONG: "readback"}
"""What a router finds by measuring real engines, said in a header: the stub engines take no time, so that the
measurement would find nothing but noise, and each run would have another mix."""
_WORDS = (
    "the file was read and its lines are kept for later use in module function returns value of each request",
    "tokens cache prefix handle blocks prefill decode router engine when error path none config test answer",
    "self import def class return await async with open for if else not raise from yield lambda",
)
_VOCABULARY = " ".join(_WORDS).split()
_LINES = ("*", "    *", '    "*"', "* = 0x1f", "# * – ok", "C:\\*", "*: 12 345")
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One request body around the conversation's number, and the path that it asks for."""

    before: bytes
    after: bytes
    path: str | None = None

    @property
    def size(self) -> int:
        return len(self.before) + len(NUMBER) + len(self.after)

    def of(self, number: int) -> tuple[bytes, bytes, bytes]:
        return self.before, b"%0*d" % (len(NUMBER), number), self.after


def prose(size: int, source: random.Random) -> str:
    """`size` bytes of text as code, logs and talk have it: lines, quotes, backslashes, some non-ASCII."""
    lines: list[str] = []
    length = 0
    while length < size:
        words = " ".join(source.choices(_VOCABULARY, k=source.randint(4, 12)))
        line = source.choice(_LINES).replace("*", words)
        lines.append(line)
        length += len(line.encode()) + 1
    return "\n".join(lines).encode()[:size].decode(errors="ignore")


def conversation(size: int, new: Sequence[int], chunks: int, source: random.Random) -> tuple[Turn, ...]:
    """The turns of one conversation; `new` are the bytes of each later turn's new message, the first turn is
    as long as makes the mean `size`."""
    later = [_later(count, chunks, number, source) for number, count in enumerate(new)]
    grown = list(itertools.accumulate((len(compact(messages)) - 1 for messages in later), initial=0))
    first = _first(size - round(sum(grown) / len(grown)), source)
    paths = (None, *(PATHS[count] for count in new))
    return tuple(
        _turn(_body(first + [message for messages in later[:count] for message in messages], chunks), path)
        for count, path in enumerate(paths)
    )


def _body(messages: list[dict[str, Any]], chunks: int) -> bytes:
    return compact(
        {
            "model": "tiny",
            "messages": messages,
            "tools": [_TOOL],
            "temperature": 0.7,
            "max_tokens": chunks,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def _first(size: int, source: random.Random) -> list[dict[str, Any]]:
    """Messages that make a body of about `size` bytes: a third the system prompt, then steps of the agent."""
    rest = size - len(_body([], 16)) - 200
    system, task = prose(rest // 3, source), f"Conversation {NUMBER}: {prose(min(2000, rest // 6), source)}"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
    missing = size - len(_body(messages, 16))
    while missing > 6000:
        step = _step(prose(source.randrange(500, 4500), source), len(messages), source)
        messages += step
        missing -= len(compact(step)) - 1
    return [*messages, {"role": "user", "content": prose(missing - 30, source)}]


def _step(output: str, number: int, source: random.Random) -> list[dict[str, Any]]:
    """The assistant's call of the tool, and what it gave."""
    name = f"call_{number:08d}"
    arguments = compact({"command": prose(80, source)}).decode()
    call = {"id": name, "type": "function", "function": {"name": "shell", "arguments": arguments}}
    return [
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": output},
    ]


def _later(size: int, chunks: int, number: int, source: random.Random) -> list[dict[str, Any]]:
    """The stub's answer to the turn before, and the user's next message."""
    said = f"Step {number}. {prose(size, source)}"
    return [{"role": "assistant", "content": text(chunks)}, {"role": "user", "content": said}]


def _turn(body: bytes, path: str | None) -> Turn:
    before, number, after = body.partition(NUMBER.encode())
    assert number, "the body has no room for the conversation's number"
    return Turn(before, after, path)


@lru_cache(16)
def variants(size: int, new: tuple[int, ...], chunks: int) -> tuple[tuple[Turn, ...], ...]:
    """The different texts of one size."""
    return tuple(
        conversation(size, new, chunks, random.Random(f"{size}-{new}-{kind}")) for kind in range(VARIANTS)
    )


_numbers = itertools.count(1)


def conversations(size: int, new: tuple[int, ...], chunks: int) -> Iterator[tuple[tuple[Turn, ...], int]]:
    """Conversations without end, each with a number that none had before in this process."""
    made = variants(size, new, chunks)
    for number in _numbers:
        yield made[number % VARIANTS], number
