"""PURE: cuts the member "kv_transfer_params" out of a JSON object, every other byte left as it was."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

NAME = "kv_transfer_params"
NEEDLE = b'"kv_transfer_params"'
_SPACE = " \t\r\n"
_raw_decode = json.JSONDecoder().raw_decode


class NotAnObject(ValueError):
    """The text is not exactly one JSON object."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The text without the member, and the member's value (None: absent or null)."""

    text: bytes
    value: Any


def cut_member(text: bytes) -> Cut:
    """Cuts the top-level member with one of its commas.

    Raises:
        NotAnObject: the name occurs in `text`, but `text` is not one JSON object.
    """
    # Inside a JSON string the quotes of the name would be escaped, so most texts end here.
    if NEEDLE not in text:
        return Cut(text, None)
    try:
        source = text.decode()
        spans, value = _find(source)
    except (ValueError, IndexError) as error:
        raise NotAnObject(f"not one JSON object: {error}") from None
    for start, end in reversed(spans):
        source = source[:start] + source[end:]
    return Cut(source.encode(), value)


def _find(source: str) -> tuple[list[tuple[int, int]], Any]:
    """Spans to cut, in order, and the last value. Walks the members: text in values cannot fool it."""
    at = _skip(source, 0)
    if source[at] != "{":
        raise ValueError("no object")
    at = _skip(source, at + 1)
    spans: list[tuple[int, int]] = []
    value: Any = None
    comma: int | None = None
    while source[at] != "}":
        start = at
        if source[at] != '"':
            raise ValueError("no member name")
        name, at = _raw_decode(source, at)
        at = _skip(source, at)
        if source[at] != ":":
            raise ValueError("no colon")
        found, end = _raw_decode(source, _skip(source, at + 1))
        at = _skip(source, end)
        more = source[at] == ","
        if name == NAME:
            value = found
            spans.append(_span(source, start, end, comma, at if more else None))
        # After a cut first member its following comma is gone too, so the next one is first again.
        comma = at if more and (name != NAME or comma is not None) else None
        if more:
            at = _skip(source, at + 1)
        elif source[at] != "}":
            raise ValueError("no comma")
    if _skip(source, at + 1) != len(source):
        raise ValueError("text after the object")
    return spans, value


def _span(source: str, start: int, end: int, before: int | None, after: int | None) -> tuple[int, int]:
    if before is not None:
        return before, end
    return (start, end) if after is None else (start, _skip(source, after + 1))


def _skip(source: str, at: int) -> int:
    while at < len(source) and source[at] in _SPACE:
        at += 1
    return at
