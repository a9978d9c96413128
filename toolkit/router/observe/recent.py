"""The last finished requests, as the page shows them and as its percentiles are computed from."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from toolkit.router.observe.record import RequestRecord


class Row(NamedTuple):
    """One finished request. `at` is the wall clock (Unix seconds) at its end; `_ms` are milliseconds."""

    at: float
    request_id: str
    endpoint: str | None
    path: str | None
    reason: str | None
    prompt_tokens: int | None
    read_tokens: int | None
    ttft_ms: float | None
    prefill_ms: float | None
    total_ms: float
    status: int | None
    outcome: str
    failed: bool
    conversation: str | None


class Recent:
    """A ring of `size` rows: the newest push the oldest out."""

    def __init__(self, size: int = 1000) -> None:
        self._rows: deque[Row] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        return self._rows.maxlen or 0

    def add(self, record: RequestRecord) -> None:
        """Keeps what is shown of an ended record."""
        self._rows.append(
            Row(
                record.ended_at,
                record.request_id,
                record.route,
                record.path,
                record.reason,
                record.prompt_tokens,
                record.kv_read_tokens,
                record.ttft_ms,
                record.prefill_ms,
                record.total_ms,
                record.status,
                record.outcome,
                record.failed,
                record.digest,
            )
        )

    def latest(self, count: int) -> list[Row]:
        """Up to `count` rows, the newest first."""
        return list(islice(reversed(self._rows), count))

    def all(self) -> list[Row]:
        """Every row, the oldest first."""
        return list(self._rows)
