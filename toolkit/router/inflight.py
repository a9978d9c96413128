"""Counts the requests that are running, so that the end of the process can wait for the last of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """`with in_flight.one():` around each request; `count` is how many run now."""

    def __init__(self) -> None:
        self.count = 0
        self._idle: asyncio.Event | None = None

    @contextmanager
    def one(self) -> Iterator[None]:
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            if self.count == 0 and self._idle is not None:
                self._idle.set()

    async def idle(self, timeout_s: float) -> bool:
        """Waits until nothing runs; False when that takes longer than `timeout_s`."""
        if self.count == 0:
            return True
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
