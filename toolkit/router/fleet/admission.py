"""How many requests may run at a time. The others wait in one queue, first come, first served."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Protocol, cast

from toolkit.router.request.refusal import Refusal

MOST_RETRY_S = 60
# How much the latest time between two places becoming free counts.
_WEIGHT = 0.1


class ClientLeft(Exception):
    """The client of a waiting request has gone; there is nobody to answer."""


class Waiting(Protocol):
    """The part of a reply that tells of its client."""

    gone: bool
    on_gone: Callable[[], None] | None


class Admission:
    """`async with admission.place(reply):` runs its block in one of `max_concurrent` places.

    max_queue: so many requests may wait. deadline_s: and each so long.
    """

    def __init__(
        self,
        max_concurrent: int,
        max_queue: int,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running = 0
        self.refused = 0
        self._max_concurrent = max_concurrent
        self._max_queue = max_queue
        self._deadline_s = deadline_s
        self._clock = clock
        # Each waits for its future: True is a place, False a deadline or a client that left.
        self._queue: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        # Since when no place has become free, while all are taken; and how long that takes.
        self._full_since: float | None = None
        self._pace_s: float | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def place(self, reply: Waiting) -> _Place:
        """The context of one request.

        Raises on entering:
            Refusal: 429 with `retry_after_s`, for the queue is full or the deadline passed.
            ClientLeft: the client left while it waited, and the reply had no `on_gone` of its own.
        """
        return _Place(self, reply)

    def _enter(self, reply: Waiting) -> Awaitable[None]:
        if self.running >= self._max_concurrent:
            return self._wait(reply)
        self.running += 1
        if self.running == self._max_concurrent:
            self._full_since = self._clock()
        return _NOTHING

    async def _wait(self, reply: Waiting) -> None:
        if reply.gone:
            raise ClientLeft
        if len(self._queue) >= self._max_queue:
            raise self._refusal("has as many requests running and waiting as it takes")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._queue[turn] = None
        before = reply.on_gone

        def leave() -> None:
            self._give_up(turn)
            if before is not None:
                before()

        reply.on_gone = leave
        alarm = loop.call_later(self._deadline_s, self._give_up, turn)
        try:
            has_place = await turn
        except asyncio.CancelledError:
            # Cancelled between the place being given and this task hearing of it.
            if turn.done() and not turn.cancelled() and turn.result():
                self._leave()
            raise
        finally:
            alarm.cancel()
            self._queue.pop(turn, None)
            reply.on_gone = before
        if has_place:
            return
        if reply.gone:
            raise ClientLeft
        raise self._refusal(f"had no place for this request within {self._deadline_s:g} s")

    def _leave(self) -> None:
        """A place is free: the longest waiting request has it, if there is one."""
        if self._full_since is not None:
            now = self._clock()
            took = now - self._full_since
            self._pace_s = took if self._pace_s is None else self._pace_s + _WEIGHT * (took - self._pace_s)
            self._full_since = now
        while self._queue:
            turn, _ = self._queue.popitem(last=False)
            if not turn.done():
                turn.set_result(True)
                return
        self.running -= 1
        self._full_since = None

    def _give_up(self, turn: asyncio.Future[bool]) -> None:
        if not turn.done():
            self._queue.pop(turn, None)
            turn.set_result(False)

    def _refusal(self, why: str) -> Refusal:
        self.refused += 1
        return Refusal(429, f"The router {why}. Try again later.", retry_after_s=self._retry_after_s())

    def _retry_after_s(self) -> int:
        """When those who wait now will have had their turn, at the pace at which places became free."""
        pace = self._pace_s or 0.0
        if self._full_since is not None:
            # What was measured says nothing about places that have not become free since.
            pace = max(pace, self._clock() - self._full_since)
        return max(1, min(MOST_RETRY_S, math.ceil(pace * (len(self._queue) + 1))))


class _Place:
    __slots__ = ("_admission", "_reply")

    def __init__(self, admission: Admission, reply: Waiting) -> None:
        self._admission = admission
        self._reply = reply

    def __aenter__(self) -> Awaitable[None]:
        return self._admission._enter(self._reply)

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        self._admission._leave()
        return _NOTHING


class _Nothing:
    """To be awaited where there is nothing to wait for; costs less than a coroutine."""

    def __await__(self) -> Generator[None, None, None]:
        return cast(Generator[None, None, None], iter(()))


_NOTHING = _Nothing()
