"""The prefill leg of one request: one token from a prefill engine, and what decode may pull."""

from __future__ import annotations

import time
from typing import Any

import orjson

from toolkit.router.call import Call
from toolkit.router.fleet.legs import Leg
from toolkit.router.memory.handle import Handle
from toolkit.router.outcome import AnsweredBadly, PassOn
from toolkit.router.request import bodies
from toolkit.router.request.facts import Facts
from toolkit.router.state import RouterState
from toolkit.router.wire.client import EngineFailed


async def prefill(
    state: RouterState, facts: Facts, call: Call, headers: bytes, leg: Leg, handle: Handle | None
) -> dict[str, Any] | None:
    """Has `leg` compute the prompt, reading what `handle` names; its transfer parameters for decode, or None
    where it keeps nothing for decode.

    Raises:
        EngineFailed: no usable answer. PassOn: the engine refused the request itself (4xx).
    """
    record = call.record
    record.prefill = leg.url
    record.attempts += 1
    body = bodies.prefill_body(facts, None if handle is None else handle.unpack())
    started = time.monotonic()
    with leg.busy():
        answer = await state.client.whole(
            leg,
            "POST",
            facts.endpoint,
            headers,
            body,
            state.config.prefill_timeout_s,
            # A second read of blocks without a lease could find other tokens in them.
            fresh=handle is not None and handle.lease is None,
        )
    if 400 <= answer.status < 500:
        raise PassOn(leg, answer)
    if answer.status != 200:
        raise AnsweredBadly(leg, answer)
    told = _json_object(answer.body)
    if told is None:
        raise EngineFailed(leg, "answered something that is not a JSON object")
    state.health.answered(leg)
    record.prefill_ms = (time.monotonic() - started) * 1000
    params = bodies.transfer_params(told)
    record.prompt_tokens = bodies.prompt_tokens(told)
    record.kv_read_tokens = bodies.kv_read_tokens(params)
    _measure(state, facts, call)
    return params


def _measure(state: RouterState, facts: Facts, call: Call) -> None:
    """What the cost model learns of it."""
    record = call.record
    prompt, took = record.prompt_tokens, record.prefill_ms
    if not prompt or took is None:
        return
    state.costs.observe_prompt(prompt, history_bytes=facts.history_bytes)
    if record.offered:
        state.costs.observe_readback(
            took, prompt=prompt, held=record.held_tokens or 0, read=record.kv_read_tokens
        )
    else:
        state.costs.observe_prefill(took, prompt=prompt)


def _json_object(raw: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None
