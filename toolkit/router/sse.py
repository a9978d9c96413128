"""Relay of a server-sent event stream: bytes pass as the engine sent them, KV metadata is taken out."""

from __future__ import annotations

from typing import Any

from toolkit.router.kvmember import NEEDLE, cut_member

# No engine event comes near this; without a bound a broken engine could fill the router's memory.
MAX_EVENT_BYTES = 64 << 20
DONE = b"data: [DONE]"


class EventTooLarge(ValueError):
    """One event is larger than MAX_EVENT_BYTES."""


class EventRelay:
    """Feed it what arrives; it answers what may be sent on. Only an incomplete event is held back.

    Attributes:
        captured: the newest KV metadata seen, not null.
        done: the stream's last event, `data: [DONE]`, has been passed.
    """

    def __init__(self) -> None:
        self.captured: Any = None
        self.done = False
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """All events that are complete by now.

        Raises:
            EventTooLarge, NotAnObject: the stream cannot be relayed safely.
        """
        if not self._held and data.endswith(b"\n\n"):
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
        # At a line's start: inside an event's JSON no line begins.
        self.done = self.done or events.startswith(DONE) or b"\n" + DONE in events
        if NEEDLE not in events:
            return events
        return b"\n".join(self._clean_line(line) for line in events.split(b"\n"))

    def _clean_line(self, line: bytes) -> bytes:
        if NEEDLE not in line or not line.startswith(b"data:"):
            return line
        cut = cut_member(line[5:])
        if cut.value is not None:
            self.captured = cut.value
        return b"data:" + cut.text


def _last_boundary(data: bytearray, start: int) -> int:
    """End of the last blank line at or after `start`; 0 when there is none."""
    plain = data.rfind(b"\n\n", start)
    carriage = data.rfind(b"\n\r\n", start)
    return max(plain + 2 if plain >= 0 else 0, carriage + 3 if carriage >= 0 else 0)
