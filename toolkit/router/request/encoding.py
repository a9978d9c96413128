"""The members of a request as JSON text: what is large is encoded once, for both engines and the digests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from toolkit.router.request.dialects import Dialect

_INT64 = 2.0**63


class NestedTooDeeply(ValueError):
    """More than 254 levels."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A request's members.

    Attributes:
        members: without `large`; containers as JSON text.
        large: JSON text of the members that make up most of the prompt.
        items: the JSON text of each item of the history; None where it is no list of items.
    """

    members: dict[str, Any]
    large: dict[str, bytes]
    items: list[bytes] | None

    def text(self, name: str) -> bytes:
        """The member's JSON text, empty where it is absent."""
        if name in self.large:
            return self.large[name]
        value = self.members.get(name)
        return b"" if value is None else orjson.dumps(value)


def encode(dialect: Dialect, body: dict[str, Any], raw: bytes) -> Encoded:
    """The members of `body`, which orjson has parsed from `raw`.

    orjson takes an integer of more than 64 bits for a floating-point number. A request that may hold one
    where a model sees it (a tool's schema, a tool call) is read and written by the module json, as it is.

    Raises:
        NestedTooDeeply.
    """
    try:
        encoded = _encode(dialect, body, orjson.dumps)
        if _may_have_long_integers(dialect, body):
            exact = json.loads(raw)
            encoded = _encode(dialect, {name: exact[name] for name in body}, _exactly)
        return encoded
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise NestedTooDeeply(str(error)) from None


def _encode(dialect: Dialect, body: dict[str, Any], dumps: Callable[[Any], bytes]) -> Encoded:
    members: dict[str, Any] = {}
    large: dict[str, bytes] = {}
    items: list[bytes] | None = None
    for name, value in body.items():
        if name not in dialect.large:
            plain = not isinstance(value, list | dict) and dumps is orjson.dumps
            members[name] = value if plain else orjson.Fragment(dumps(value))
        elif name == dialect.history and isinstance(value, list) and not _is_prompt(dialect):
            items = [dumps(item) for item in value]
            large[name] = _array(items)
        else:
            large[name] = dumps(value)
    return Encoded(members, large, items)


def _array(items: list[bytes]) -> bytes:
    """With one copy of the items only: brackets around what is joined would be two more."""
    if len(items) < 2:
        return b"".join((b"[", *items, b"]"))
    return b",".join((b"[" + items[0], *items[1:-1], items[-1] + b"]"))


def _is_prompt(dialect: Dialect) -> bool:
    return dialect.history == "prompt"


def _exactly(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _may_have_long_integers(dialect: Dialect, body: dict[str, Any]) -> bool:
    for name, value in body.items():
        if isinstance(value, str | bool | None):
            continue
        if name != dialect.history or not isinstance(value, list):
            if _holds_long_number(value):
                return True
        elif not _is_prompt(dialect):
            # A plain message holds two strings.
            others = [
                item
                for item in value
                if type(item) is not dict or type(item.get("content")) is not str or "tool_calls" in item
            ]
            if _holds_long_number(others):
                return True
    return False


def _holds_long_number(value: object) -> bool:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if type(found) is dict:
            waiting.extend(found.values())
        elif type(found) is list:
            waiting.extend(found)
        elif type(found) is float and abs(found) >= _INT64:
            return True
    return False
