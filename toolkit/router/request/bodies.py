"""What each engine is sent for a request, and what its answer says for the next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolkit.router.request.facts import Facts

_MOST_TOKENS = 1 << 32

MISS_PARAMS: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""To prefill: keep the blocks for decode; there is nothing to read."""


def prefill_body(facts: Facts, handle: Mapping[str, Any] | None) -> list[bytes | memoryview]:
    """The request to prefill: one token, not streamed, with the saved handle or the params of a miss."""
    left_out = facts.dialect.generation
    members: dict[str, Any] = {name: text for name, text in facts.members.items() if name not in left_out}
    members.update(facts.dialect.one_token)
    members["kv_transfer_params"] = MISS_PARAMS if handle is None else handle
    return _pieces(members, facts.large)


def decode_body(
    facts: Facts, params: Mapping[str, Any] | None, *, retain: bool, release: Sequence[str] = ()
) -> list[bytes | memoryview]:
    """The client's request to decode.

    Args:
        params: prefill's transfer parameters, or None where decode computes the prompt by itself.
        retain: somebody comes back for this turn's blocks. Not asked for where the answer could not name
            them, or would name those of one sequence of several. Without prefill's parameters only an engine
            with our connector may be asked: a stock one that gets any parameters keeps the blocks for good.
        release: leases of this engine of which nobody comes back for the blocks.
    """
    keep = retain and facts.transferable and facts.tells_handle
    wanted: dict[str, Any] = {}
    if params is None:
        if keep:
            wanted["pd_retain"] = True
    else:
        wanted.update(params)
        if not facts.dialect.takes_prompt_ids:
            wanted.pop("prompt_token_ids", None)
        if not keep:
            wanted["pd_retain"] = False
    if release:
        wanted["pd_release"] = release
    return _pieces({**facts.members, "kv_transfer_params": wanted} if wanted else facts.members, facts.large)


def transfer_params(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """What decode may pull with, from prefill's answer; None when prefill kept nothing for it.

    Anything but a read from prefill is withheld: decode would retain blocks that nobody can name.
    """
    params = answer.get("kv_transfer_params")
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        return None
    return params if params.get("remote_block_ids") else None


def kv_read_tokens(params: Mapping[str, Any] | None) -> int | None:
    """Prompt tokens that prefill read from decode, as our connector tells; None where another answers."""
    return None if params is None else _count(params.get("pd_read"))


def prompt_tokens(answer: Mapping[str, Any]) -> int | None:
    """The length of the prompt in tokens, from the usage of an engine's whole answer."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    count = usage.get("prompt_tokens")
    if count is None:
        count = usage.get("input_tokens")
        # Of /v1/messages the tokens found in the cache are counted apart.
        for name in ("cache_read_input_tokens", "cache_creation_input_tokens"):
            cached = usage.get(name)
            if isinstance(count, int) and isinstance(cached, int):
                count += cached
    return _count(count)


def _count(told: object) -> int | None:
    """A number of tokens; anything else that an engine may tell is none."""
    return told if type(told) is int and 0 <= told < _MOST_TOKENS else None


def _pieces(members: Mapping[str, Any], large: Mapping[str, memoryview]) -> list[bytes | memoryview]:
    """A JSON object in pieces. The large ones are the same objects in every body."""
    pieces: list[bytes | memoryview] = []
    opening = msgspec.json.encode(members)[:-1]
    for name, text in large.items():
        comma = b"" if opening == b"{" else b","
        pieces += (opening + comma + b'"' + name.encode() + b'":', text)
        opening = b""
    pieces.append(opening + b"}")
    return pieces
