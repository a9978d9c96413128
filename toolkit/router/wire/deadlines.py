"""One timer for all connections of a server or a client, instead of one timer for each of them."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol


class Dated(Protocol):
    """Something that is late once `deadline` (of time.monotonic) has passed; math.inf: never."""

    deadline: float

    def expired(self) -> None:
        """It is late. It must move its deadline or leave."""


class Deadlines:
    """Looks at all deadlines every `every_s` seconds, so that moving one costs an assignment.

    A deadline is noticed at most `every_s` late. The timer runs only while there is something to watch.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._watched: set[Dated] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._was_late = False

    def __len__(self) -> int:
        return len(self._watched)

    def watched(self) -> list[Dated]:
        return list(self._watched)

    def add(self, dated: Dated) -> None:
        self._watched.add(dated)
        self._schedule(monotonic())

    def discard(self, dated: Dated) -> None:
        self._watched.discard(dated)
        if not self._watched and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, now: float) -> None:
        """Starts the timer, if it does not run."""
        if self._timer is None:
            self._due = now + self._every_s
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def _look(self) -> None:
        now = monotonic()
        # After the loop was blocked, what came meanwhile is still unread: it is read before anyone is late.
        late = now > self._due + self._every_s and not self._was_late
        self._was_late = late
        self._timer = None
        if not late:
            for dated in [dated for dated in self._watched if dated.deadline <= now]:
                dated.expired()
        if self._watched:
            self._schedule(now)
