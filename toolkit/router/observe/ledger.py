"""The ends of requests, noted at once and accounted for a moment later, many together.

The client of one request is often waiting to send the next: what is counted and logged of the first stays out
of the way of the second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from toolkit.router.observe.record import RequestRecord

SETTLE_S = 0.025


class Ledger:
    """Belongs to one event loop. `settle` before anything is read that the books keep.

    books: what is told of each ended record, in this order.
    """

    def __init__(self, *books: Callable[[RequestRecord], None]) -> None:
        self._books = books
        self._open: list[RequestRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def ended(self, record: RequestRecord) -> None:
        """Closes the record now."""
        record.end(time.monotonic(), time.time())
        self._open.append(record)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self.settle)

    def settle(self) -> None:
        """Tells the books of every record that they have not been told of."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._open = self._open, []
        for record in records:
            for book in self._books:
                book(record)
