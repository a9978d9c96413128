"""What is known about one request when it ends: the source of its log line and of its metrics."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    """Filled while the request runs. Times in milliseconds; `started` is a monotonic time in seconds."""

    request_id: str
    started: float
    stream: bool = False
    conversation: str | None = None
    path: str | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float = 0.0
    status: int | None = None
    prompt_tokens: int | None = None
    kv_read_tokens: int | None = None
    prefill: str | None = None
    decode: str | None = None
    sent_bytes: int = 0
    saved: bool = False
    retries: int = 0
    failures: list[str] = field(default_factory=list)
    outcome: str = "ok"

    def fields(self) -> dict[str, object]:
        """The log line's members, in order. The conversation is a digest, never the client's own text."""
        named = self.conversation
        digest = None if named is None else hashlib.sha256(named.encode("utf-8", "replace")).hexdigest()[:12]
        return {
            "request_id": self.request_id,
            "conversation": digest,
            "path": self.path,
            "prefill_ms": _ms(self.prefill_ms),
            "ttft_ms": _ms(self.ttft_ms),
            "total_ms": _ms(self.total_ms),
            "status": self.status,
            "stream": str(self.stream).lower(),
            "prompt_tokens": self.prompt_tokens,
            "kv_read_tokens": self.kv_read_tokens,
            "prefill": self.prefill,
            "decode": self.decode,
            "bytes": self.sent_bytes,
            "saved": str(self.saved).lower(),
            "retries": self.retries,
            "outcome": self.outcome,
            "failures": '"' + "; ".join(self.failures) + '"' if self.failures else None,
        }


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"
