"""One request of a sweep, as the benchmark client writes it and report reads it: a line of rows.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """Times in milliseconds unless a name says otherwise; `error` set means the request failed."""

    leg: Literal["off", "on"]
    prompt_length: int  # the sweep point: target prompt tokens of the last turn
    conversation: str
    turn: int  # from 1
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    total_ms: float
    prefill_ms: float | None  # the router's figure, header X-Prefill-Ms
    path: str | None  # header X-KV-Path
    kv_read_tokens: int | None  # header X-KV-Read-Tokens: prompt tokens that prefill read from decode
    output_digest: str  # sha256 of the output's token ids and finish reason
    first_token: int | None
    first_logprob: float | None
    first_top: dict[int, float] | None  # the likeliest first tokens and their log-probabilities
    started_at: float  # Unix seconds, of the client's node
    error: str | None = None
