"""PURE: the stub engine's answers: the recorded ones with other texts, token counts and handles.

Ids and times stay as they were recorded. Answers that hold a handle come in two halves, with room for the
lease's name between them: all else is made once and kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bench.router.handles import LEASE, handle
from bench.router.pattern import DONE, Answer, recorded

END = b"0\r\n\r\n"
WORDS = ("The", " file", " is", " read", " once", ",", " then", " kept", ".", "\n")
_KEPT = 4096

Halves = tuple[bytes, bytes]
"""Before and after the lease's name; the second is empty where the answer holds no handle."""


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def framed(piece: bytes) -> bytes:
    """One chunk of the chunked coding."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def event(value: object) -> bytes:
    return framed(b"data: " + compact(value) + b"\n\n")


def head(answer: Answer, length: int = 0) -> bytes:
    """Status line and headers as recorded, but for the length, where they tell one."""
    lines = [answer.status]
    for name, value in answer.headers:
        lines.append(b"%b: %b" % (name, b"%d" % length if name == b"content-length" else value))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def whole(answer: Answer, document: object) -> bytes:
    body = compact(document)
    return head(answer, len(body)) + body


def halves(text: bytes) -> Halves:
    before, _, after = text.partition(LEASE.encode())
    return before, after


@dataclass(frozen=True)
class Messages:
    """The answers of one endpoint: `name` is chat or completions."""

    name: str

    def __post_init__(self) -> None:
        for method in ("prefill", "stream_start", "stream_end", "whole"):
            object.__setattr__(self, method, lru_cache(_KEPT)(getattr(self, method)))

    def prefill(self, tokens: int, read: int) -> Halves:
        """Prefill's answer for a prompt of `tokens`, of which it read `read` from decode."""
        pattern = recorded(f"{self.name}-prefill")
        found = pattern.document()
        params = handle(found["kv_transfer_params"], tokens) | {"pd_read": read}
        changed = {"usage": _usage(found["usage"], tokens, 1), "kv_transfer_params": params}
        return halves(whole(pattern, found | changed))

    def stream_start(self, count: int) -> tuple[bytes, ...]:
        """The head and the events of all tokens but the last of `count`; a chat's first has the role."""
        pattern = recorded(f"{self.name}-decode-stream")
        first, second, *_ = pattern.events()
        role = event(first) if self.name == "chat" else b""
        tokens = [event(self._said(second, word(number))) for number in range(count - 1)]
        return (head(pattern) + role + b"".join(tokens[:1]), *tokens[1:])

    def stream_end(self, tokens: int, count: int, *, usage: bool, kept: bool) -> Halves:
        """The last token's event, the usage where asked, the handle where blocks are kept, and the end."""
        pattern = recorded(f"{self.name}-decode-stream{'' if usage else '-without-usage'}")
        finish, *rest = pattern.events()[-2 if usage else -1 :]
        last = [self._said(finish, word(count - 1)), *rest]
        params = last[-1].pop("kv_transfer_params")
        if usage:
            last[-1]["usage"] = _usage(last[-1]["usage"], tokens, count)
        if kept:
            last[-1]["kv_transfer_params"] = handle(params, tokens + count)
        return halves(b"".join(map(event, last)) + framed(DONE) + END)

    def whole(self, tokens: int, count: int, *, kept: bool) -> Halves:
        """Decode's answer that is not streamed."""
        pattern = recorded(f"{self.name}-decode-whole")
        found = pattern.document()
        params = handle(found["kv_transfer_params"], tokens + count) if kept else None
        choice = dict(found["choices"][0])
        if self.name == "chat":
            choice["message"] = choice["message"] | {"content": text(count)}
        else:
            choice["text"] = text(count)
        changed = {"choices": [choice], "usage": _usage(found["usage"], tokens, count)}
        return halves(whole(pattern, found | changed | {"kv_transfer_params": params}))

    def _said(self, chunk: dict[str, Any], said: str) -> dict[str, Any]:
        piece = {"delta": {"content": said}} if self.name == "chat" else {"text": said}
        return chunk | {"choices": [chunk["choices"][0] | piece]}


def word(number: int) -> str:
    """What token `number` of every generation says."""
    return WORDS[number % len(WORDS)]


def text(count: int) -> str:
    """What a generation of `count` tokens says."""
    return "".join(map(word, range(count)))


def _usage(usage: dict[str, Any], prompt: int, completion: int) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    cached = usage["prompt_tokens_details"] | {"cached_tokens": prompt}
    return usage | counts | {"prompt_tokens_details": cached}
