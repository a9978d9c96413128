"""Cuts the member "kv_transfer_params" out of a JSON object, every other byte left as it was."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import orjson

NAME = "kv_transfer_params"
NEEDLE = b'"kv_transfer_params"'
_SPACE = " \t\r\n"
# As Python shows a dictionary that holds at most dictionaries of one more level, with the comma before it.
_SHOWN = re.compile(rb"(?:, )?'kv_transfer_params': \{(?:[^{}]|\{[^{}]*\})*\}")
_raw_decode = json.JSONDecoder().raw_decode


class NotAnObject(ValueError):
    """The text is not exactly one JSON object."""


def cut_shown(error: bytes) -> bytes | None:
    """The body of an engine's error without the member, or None where it cannot be told apart.

    vLLM's validation errors repeat the request as Python shows it, and with it what the router put there.
    """
    if NAME.encode() not in error:
        return error
    cut = _SHOWN.sub(b"", error)
    return None if NAME.encode() in cut else cut


class Cut(NamedTuple):
    """The text without the member, and the member's value (None: absent or null)."""

    text: bytes
    value: Any


def cut_member(text: bytes, inside: str | None = None) -> Cut:
    """Cuts the member, with one of its commas, from the object and from that in its member `inside`.

    Raises:
        NotAnObject: the name occurs in `text`, but `text` is not one JSON object.
    """
    # Inside a JSON string the quotes of the name would be escaped, so most texts end here.
    at = text.find(NEEDLE)
    if at < 0:
        return Cut(text, None)
    if text.find(NEEDLE, at + 1) < 0:
        # The walk below judges what orjson refuses: NaN and lone surrogates, which an engine may write.
        try:
            return _cut_only(text, at, inside)
        except orjson.JSONDecodeError:
            pass
    try:
        source = text.decode()
        walk = _Walk(source, inside)
        walk.whole()
    except (ValueError, IndexError, RecursionError) as error:
        raise NotAnObject(f"not one JSON object: {error}") from None
    for start, end in reversed(walk.spans):
        source = source[:start] + source[end:]
    return Cut(source.encode(), walk.value)


def _cut_only(text: bytes, at: int, inside: str | None) -> Cut:
    """The name stands once. If it is a member's, then that member's: engines do not escape names."""
    owner = orjson.loads(text)
    if not isinstance(owner, dict):
        raise NotAnObject("not one JSON object: another value")
    if NAME not in owner and inside is not None:
        owner = owner.get(inside)
    if not isinstance(owner, dict) or NAME not in owner:
        return Cut(text, None)
    value = owner[NAME]
    before, after = text[:at].rstrip(), text[_end(text, at, value) :]
    if before.endswith(b","):
        return Cut(before[:-1] + after, value)
    following = after.lstrip()
    return Cut(text[:at] + (following[1:].lstrip() if following.startswith(b",") else after), value)


def _end(text: bytes, at: int, value: object) -> int:
    """Where the member ends whose name begins at `at`. Most engines write it as orjson does."""
    if isinstance(value, dict):
        try:
            written = NEEDLE + b":" + orjson.dumps(value)
            if text.startswith(written, at):
                return at + len(written)
        except orjson.JSONEncodeError:
            pass
    rest = text[at:].decode()
    _, end = _raw_decode(rest, _skip(rest, _skip(rest, len(NEEDLE)) + 1))
    return at + len(rest[:end].encode())


class _Walk:
    """Walks the members of an object: text in values cannot fool it.

    Attributes:
        spans: what to cut, in order.
        value: the last value that is not null.
    """

    def __init__(self, source: str, inside: str | None) -> None:
        self.spans: list[tuple[int, int]] = []
        self.value: Any = None
        self._source = source
        self._inside = inside

    def whole(self) -> None:
        end = self._object(_skip(self._source, 0), self._inside)
        if _skip(self._source, end) != len(self._source):
            raise ValueError("text after the object")

    def _object(self, at: int, inside: str | None) -> int:
        source = self._source
        if source[at] != "{":
            raise ValueError("no object")
        at = _skip(source, at + 1)
        comma: int | None = None
        while source[at] != "}":
            start = at
            if source[at] != '"':
                raise ValueError("no member name")
            name, at = _raw_decode(source, at)
            at = _skip(source, at)
            if source[at] != ":":
                raise ValueError("no colon")
            end = self._value(name, _skip(source, at + 1), inside)
            at = _skip(source, end)
            more = source[at] == ","
            if name == NAME:
                self.spans.append(_span(source, start, end, comma, at if more else None))
            # After a cut first member its following comma is gone too, so the next one is first again.
            comma = at if more and (name != NAME or comma is not None) else None
            if more:
                at = _skip(source, at + 1)
            elif source[at] != "}":
                raise ValueError("no comma")
        return at + 1

    def _value(self, name: str, at: int, inside: str | None) -> int:
        if name == inside and self._source[at] == "{":
            return self._object(at, None)
        found, end = _raw_decode(self._source, at)
        if name == NAME and found is not None:
            self.value = found
        return end


def _span(source: str, start: int, end: int, before: int | None, after: int | None) -> tuple[int, int]:
    if before is not None:
        return before, end
    return (start, end) if after is None else (start, _skip(source, after + 1))


def _skip(source: str, at: int) -> int:
    while at < len(source) and source[at] in _SPACE:
        at += 1
    return at
