"""Relay of a server-sent event stream: bytes pass as the engine sent them, KV metadata is taken out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from toolkit.router.request.dialects import DIALECTS, Endpoint
from toolkit.router.request.kvmember import NEEDLE, cut_member

# No engine event comes near this; without a bound a broken engine could fill the router's memory.
MAX_EVENT_BYTES = 64 << 20
_LINE_BREAK = ord("\n")


class EventTooLarge(ValueError):
    """One event is larger than MAX_EVENT_BYTES."""


class EventRelay:
    """Feed it what arrives; it answers what may be sent on. Only an incomplete event is held back.

    Attributes:
        captured: the newest KV metadata seen, not null.
        done: the stream's last event has passed: `[DONE]`, `message_stop`, `response.completed` or its like.
        response_id: of a stream of /v1/responses, where it was asked for, once its first event has passed.
    """

    __slots__ = ("_ends", "_held", "_nests", "_wants_id", "captured", "done", "response_id")

    def __init__(self, endpoint: Endpoint = Endpoint.CHAT, *, wants_id: bool = False) -> None:
        dialect = DIALECTS[endpoint]
        self.captured: Any = None
        self.done = False
        self.response_id: str | None = None
        self._wants_id = wants_id
        self._nests = dialect.nests
        self._ends = dialect.ends
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """All events that are complete by now.

        Raises:
            EventTooLarge, NotAnObject: the stream cannot be relayed safely.
        """
        # By index and by `find`, here and below: of each chunk, and of all that the router does with one the
        # calls of methods cost most. `in` even raises and clears a TypeError, for it tries a number first.
        if not self._held and len(data) > 1 and data[-1] == _LINE_BREAK and data[-2] == _LINE_BREAK:
            return self._clean(data)
        searched = max(0, len(self._held) - 2)
        self._held += data
        end = _last_boundary(self._held, searched)
        if not end:
            if len(self._held) > MAX_EVENT_BYTES:
                raise EventTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
            return b""
        ready = bytes(self._held[:end])
        del self._held[:end]
        return self._clean(ready)

    def finish(self) -> bytes:
        """What is left when the engine ended its stream without a last blank line."""
        rest = bytes(self._held)
        self._held.clear()
        return self._clean(rest)

    def _clean(self, events: bytes) -> bytes:
        for end in self._ends:
            at = events.find(end)
            # At a line's start: inside an event's JSON no line begins.
            while at > 0 and events[at - 1] != _LINE_BREAK:
                at = events.find(end, at + 1)
            if at >= 0:
                self.done = True
        if self._wants_id:
            self._note_id(events)
        return events if events.find(NEEDLE) < 0 else self._without_metadata(events)

    def _without_metadata(self, events: bytes) -> bytes:
        pieces: list[bytes] = []
        done = 0
        while (found := events.find(NEEDLE, done)) >= 0:
            start, end = events.rfind(b"\n", done, found) + 1, events.find(b"\n", found)
            start, end = max(start, done), len(events) if end < 0 else end
            pieces += (events[done:start], self._clean_line(events[start:end]))
            done = end
        return b"".join((*pieces, events[done:]))

    def _clean_line(self, line: bytes) -> bytes:
        if NEEDLE not in line or not line.startswith(b"data:"):
            return line
        cut = cut_member(line[5:], self._nests)
        if cut.value is not None:
            self.captured = cut.value
        return b"data:" + cut.text

    def _note_id(self, events: bytes) -> None:
        """Every stream begins with `response.created`; one that does not has no id to remember."""
        for line in events.splitlines():
            if line.startswith(b"data:"):
                self._wants_id = False
                self.response_id = response_id(line[5:])
                return


def is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether an answer with these headers (names in lower case) is a stream of events."""
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def response_id(text: bytes) -> str | None:
    """The id of a whole answer of /v1/responses, or of the one that an event of its stream carries."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if isinstance(found, dict) and isinstance(found.get("response"), dict):
        found = found["response"]
    named = found.get("id") if isinstance(found, dict) else None
    return named if isinstance(named, str) else None


def _last_boundary(data: bytearray, start: int) -> int:
    """End of the last blank line at or after `start`; 0 when there is none."""
    plain = data.rfind(b"\n\n", start)
    carriage = data.rfind(b"\n\r\n", start)
    return max(plain + 2 if plain >= 0 else 0, carriage + 3 if carriage >= 0 else 0)
