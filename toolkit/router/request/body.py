"""A client's request as the JSON text that the client wrote: what is large is never decoded nor encoded."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec
import orjson

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_value = msgspec.json.Decoder().decode
_NULL = msgspec.Raw(b"null")
# More than orjson writes and pydantic serializes.
_DEEP = 250
# Of a surrogate's three bytes the first; it also begins some Korean syllables.
_SURROGATE = b"\xed"
MOST_MEMBERS = 1000
MOST_BYTES = 4 << 20
"""Of a member beside the history: values take many times the memory of their text."""


class BadBody(ValueError):
    """It is no JSON object; the text says what is wrong, as a sentence."""


class Body:
    """The members of one JSON object. Of two with one name the last counts, as in Python's json.

    Attributes:
        texts: the JSON text of each, part of the text that was parsed.
    """

    __slots__ = ("_values", "texts")

    def __init__(self, raw: bytes) -> None:
        """Raises BadBody."""
        self._values: dict[str, Any] = {}
        try:
            self.texts = _members(raw)
            if _SURROGATE in raw:
                raw.decode()
        except msgspec.ValidationError:
            raise BadBody("The request body must be a JSON object.") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadBody(f"The request body is not valid JSON: {error}") from None
        if len(self.texts) > MOST_MEMBERS:
            raise BadBody(f"The request body has more than {MOST_MEMBERS} members.")

    def check(self, history: str, large: Container[str]) -> None:
        """Refuses what an engine takes and fails on later, when it has computed a prompt and is to show what
        it was asked: numbers beyond floating point, texts that are not UTF-8, very deep nesting. Of `large`
        members only the nesting is looked at, of the history nothing: it is not shown again.

        Raises BadBody.
        """
        for name in self.texts:
            if name != history:
                text = self.text(name)
                if len(text) > MOST_BYTES and not self.is_string(name):
                    raise BadBody(f"The member {name} of the request body has more than {MOST_BYTES} bytes.")
                if name not in large:
                    self.get(name)
                _check_depth(name, text)

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    def get(self, name: str, default: Any = None) -> Any:
        """The member's value. Raises BadBody: it has text that is not UTF-8, or a number that is none."""
        if name not in self._values:
            text = self.texts.get(name)
            if text is None:
                return default
            self._values[name] = _decoded(name, text)
        return self._values[name]

    def pop(self, name: str) -> Any:
        """As `get`, and the body has it no more."""
        value = self.get(name)
        self.texts.pop(name, None)
        self._values.pop(name, None)
        return value

    def text(self, name: str) -> bytes:
        """The member's JSON text; empty where it is absent or null."""
        text = self.texts.get(name)
        return b"" if text is None or text == _NULL else bytes(text)

    def is_list(self, name: str) -> bool:
        return self._begins(name, "[")

    def is_string(self, name: str) -> bool:
        return self._begins(name, '"')

    def items(self, name: str, most: int) -> list[bytes] | None:
        """The JSON text of each item of a member that is a list; None if there are, or may be, more."""
        text = self.texts[name]
        # Splitting makes an object of each item. What is so long and has so many commas has too many items,
        # or more in them than any model reads.
        if len(text) > MOST_BYTES and bytes(text).count(b",") > 32 * most:
            return None
        found = _items(text)
        return [bytes(item) for item in found] if len(found) <= most else None

    def _begins(self, name: str, sign: str) -> bool:
        text = self.texts.get(name)
        return text is not None and memoryview(text)[0] == ord(sign)


def _decoded(name: str, text: msgspec.Raw) -> Any:
    try:
        return _value(text)
    except msgspec.DecodeError as error:
        raise BadBody(f"The member {name} of the request body is not valid JSON: {error}") from None


def _check_depth(name: str, text: bytes) -> None:
    if len(text) <= _DEEP or text.count(b"[") + text.count(b"{") <= _DEEP:
        return
    try:
        orjson.dumps(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        raise BadBody(f"The member {name} of the request body is not valid JSON: {error}") from None
    except orjson.JSONEncodeError:
        raise BadBody(f"The member {name} of the request body is nested too deeply.") from None
