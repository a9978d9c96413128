"""What is known about one request when it ends: the source of its log line, metrics and row on the page."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal

Identity = Literal["explicit", "automatic", "none"]
# unknown: prefill was offered decode's blocks and did not tell whether it read them.
Readback = Literal["hit", "declined", "unknown", "none"]

_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


@dataclass(slots=True)
class RequestRecord:
    """Filled while the request runs; `end` closes it.

    Durations (`_ms`) are milliseconds; `started` and the byte times (`_at`) are seconds of one monotonic
    clock; token counts are prompt tokens. None means: not known, or it did not happen.
    """

    request_id: str
    started: float
    endpoint: str | None = None
    # The endpoint without what clients put into it, for those who may see others' requests.
    route: str | None = None
    stream: bool = False
    # A key that holds the tenant's (identity.py), so that nobody tells a name by its digest.
    conversation: bytes | None = None
    identity: Identity = "none"
    path: str | None = None
    # Why this path: one of a fixed set of short texts, since it labels metrics.
    reason: str | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float = 0.0
    status: int | None = None
    prompt_tokens: int | None = None
    kv_read_tokens: int | None = None
    # What decode holds of the conversation, and what this turn adds to it.
    held_tokens: int | None = None
    suffix_tokens: int | None = None
    # Set when a handle is sent to prefill.
    offered: bool = False
    # Why prefill read nothing of what it was offered, where that is known.
    declined: str | None = None
    prefill: str | None = None
    decode: str | None = None
    sent_bytes: int = 0
    first_byte_at: float | None = None
    last_byte_at: float | None = None
    saved: bool = False
    # Requests that engines were sent, and how many of them were second tries.
    attempts: int = 0
    retries: int = 0
    failures: list[str] = field(default_factory=list)
    outcome: str = "ok"
    trace: str | None = None
    # The name beside the client's key in the file of API keys; never the key.
    key_name: str | None = None
    # Unix seconds.
    ended_at: float = 0.0

    def end(self, now: float, at: float) -> None:
        """Closes the record at `now`, a time of the same clock as `started`, and `at`, in Unix seconds."""
        self.ended_at = at
        self.total_ms = (now - self.started) * 1000
        if self.ttft_ms is None and self.stream and self.status == 200 and self.first_byte_at is not None:
            self.ttft_ms = (self.first_byte_at - self.started) * 1000

    @property
    def digest(self) -> str | None:
        """What is shown of the conversation."""
        return None if self.conversation is None else conversation_digest(self.conversation)

    @property
    def readback(self) -> Readback:
        """What became of the blocks that prefill was offered; `none` if it was offered none."""
        if not self.offered:
            return "none"
        if self.kv_read_tokens is None:
            return "unknown"
        return "hit" if self.kv_read_tokens > 0 else "declined"

    @property
    def failed(self) -> bool:
        return is_failure(self.status, self.outcome)


_FAILURES = frozenset({"decode-broke", "engine-error", "internal-error", "shutdown"})


def is_failure(status: int | None, outcome: str) -> bool:
    """Whether the router or an engine, rather than the client, is the cause of a bad end."""
    return (status is not None and status >= 500) or outcome in _FAILURES


def conversation_digest(key: bytes) -> str:
    """The first 12 hex digits of the SHA-256: enough to follow a conversation."""
    return hashlib.sha256(key).hexdigest()[:12]


def trace_id(traceparent: bytes | None) -> str | None:
    """The trace id (32 hex digits) of a W3C `traceparent` header; None without one that is well formed."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent.strip())
    return None if found is None else found[1].decode()
