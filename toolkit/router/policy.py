"""PURE: facts and a found handle -> the path of a request and the bodies each engine is sent."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import orjson

from toolkit.router.facts import RequestFacts


class Path(StrEnum):
    """The way of one request; sent to the client as X-KV-Path."""

    PREFILL = "prefill"
    """Prefill computes the prompt, decode pulls its blocks."""
    READBACK = "readback"
    """Prefill is offered the blocks that decode kept and computes the rest. How many tokens it took is told
    apart (X-KV-Read-Tokens): none, say, where fewer than the threshold are common."""
    DECODE_LOCAL = "decode-local"
    """Decode computes everything: nothing is transferred and nothing is kept."""


MISS_PARAMS: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

# Without one of these prefill cannot read (vLLM's pull scheduler asks for all of them).
_HANDLE_MEMBERS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")

# What only matters once tokens are generated, or would make a one-token answer fail validation.
_DECODE_ONLY = (
    "stream_options",
    "max_completion_tokens",
    "min_tokens",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
)


def choose_path(facts: RequestFacts, *, handle_found: bool) -> Path:
    """The path of a request.

    Several choices or prompts go to decode alone: one set of transfer parameters describes the blocks
    of one sequence, and every child sequence that carries it would pin its blocks on decode for the
    whole TTL without anybody holding their handle. So do requests for the prompt's log-probabilities:
    vLLM 0.29 dies when part of such a prompt's KV comes from elsewhere.
    """
    if not facts.transferable:
        return Path.DECODE_LOCAL
    return Path.READBACK if handle_found else Path.PREFILL


def prefill_body(facts: RequestFacts, handle: bytes | None) -> bytes:
    """The request to prefill: one token, not streamed, with the saved handle or the params of a miss."""
    body = {name: value for name, value in facts.body.items() if name not in _DECODE_ONLY}
    body["stream"] = False
    body["max_tokens"] = 1
    if "n" in body:
        body["n"] = 1
    body["kv_transfer_params"] = MISS_PARAMS if handle is None else orjson.Fragment(handle)
    return orjson.dumps(body)


def decode_body(facts: RequestFacts, params: dict[str, Any] | None) -> bytes:
    """The client's request to decode, with prefill's transfer parameters if it gave any.

    Without a conversation nobody comes back for the blocks of this turn: our connector then frees them at
    once (stock vLLM keeps them for the whole TTL, and decode fills up).
    """
    if params is None:
        return orjson.dumps(facts.body)
    if facts.key is None:
        params = {**params, "pd_retain": False}
    return orjson.dumps({**facts.body, "kv_transfer_params": params})


def transfer_params(answer: dict[str, Any]) -> dict[str, Any] | None:
    """What decode may pull with, from prefill's answer; None when prefill kept nothing for it.

    Anything but a read from prefill is withheld: decode would retain blocks that nobody can name.
    """
    params = answer.get("kv_transfer_params")
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        return None
    return params if params.get("remote_block_ids") else None


def kv_read_tokens(params: dict[str, Any] | None) -> int | None:
    """Prompt tokens that prefill read from decode, as our connector tells; None where another answers."""
    read = None if params is None else params.get("pd_read")
    return read if isinstance(read, int) else None


def handle_from(params: object) -> bytes | None:
    """Decode's metadata as the handle to send to prefill next turn (compact JSON), if it is complete."""
    if not isinstance(params, dict) or not all(params.get(name) for name in _HANDLE_MEMBERS):
        return None
    return orjson.dumps({**params, "do_remote_decode": True, "do_remote_prefill": False})
