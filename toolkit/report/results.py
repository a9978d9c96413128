"""The figures of a sweep, from its rows and KV transfers. Pure.

A first turn is a miss in both legs, so ratios and means are over turns from the second on; first turns
are told apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.collect.kv_log import KvTransfers
from toolkit.collect.sweep import LegData, SweepData
from toolkit.plan.row import Row
from toolkit.report.verdict import judge, provenance
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import EmbeddedTarget

# Below it a mean says little, and a 90th percentile nothing.
FEW_REQUESTS = 5
FIRST_TURNS_APART = 1.25


@dataclass(frozen=True)
class Stats:
    """Over `count` requests, milliseconds; `p90` interpolated linearly."""

    count: int
    mean: float
    median: float
    p90: float


@dataclass(frozen=True)
class LegFigures:
    """One leg at one prompt length; None where no request succeeded."""

    ttft_ms: Stats | None
    prefill_ms: Stats | None
    first_turn_ttft_ms: Stats | None
    first_turn_prefill_ms: Stats | None


@dataclass(frozen=True)
class Readback:
    """D->P transfers of leg ON at one prompt length. `ms`: mean of a transfer, which ranks of a tensor
    parallel engine make side by side; `mb`: MiB per readback, all ranks together."""

    readbacks: int
    transfers: int
    ms: float
    p90_ms: float
    post_ms: float
    mb: float
    descriptors: float


@dataclass(frozen=True)
class PointResult:
    """`on_compute_ms` is prefill's mean without the transfer's; ratios are OFF / ON of means."""

    prompt_length: int
    off: LegFigures
    on: LegFigures
    kv_transfer: Readback | None
    on_compute_ms: float | None
    ttft_ratio: float | None
    prefill_ratio: float | None


@dataclass(frozen=True)
class Results:
    """results.json."""

    name: str
    valid: bool
    reasons: tuple[str, ...]
    cautions: tuple[str, ...]
    outputs_identical: bool
    ttft_ratio_longest: float | None
    prefill_ratio_longest: float | None
    software: dict[str, Any]
    ran_on: dict[str, Any]
    settings: dict[str, Any]
    points: tuple[PointResult, ...]
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(
    name: str, data: SweepData, settings: Deployment, software: dict[str, Any], nodes: dict[str, Any]
) -> Results:
    """`name`: the sweep's; `software`: versions by name; `nodes`: by job, the node and hardware it ran on."""
    verdict = judge(data, settings)
    points = tuple(_point(length, data) for length in settings.sweep.prompt_lengths)
    reasons = (*verdict.reasons, *provenance(software, nodes, settings), *_without_ratio(points))
    return Results(
        name=name,
        valid=not reasons,
        reasons=reasons,
        cautions=tuple(_cautions(points)),
        outputs_identical=verdict.outputs_identical,
        ttft_ratio_longest=points[-1].ttft_ratio,
        prefill_ratio_longest=points[-1].prefill_ratio,
        software=software,
        ran_on=ran_on(settings, nodes),
        settings=settings.model_dump(mode="json"),
        points=points,
        rows=(*data.off.rows, *data.on.rows),
    )


def _without_ratio(points: Sequence[PointResult]) -> Iterator[str]:
    for point in points:
        if point.ttft_ratio is None or point.prefill_ratio is None:
            yield f"{point.prompt_length} tokens: no ratio of OFF to ON, as a leg has no figures to compare"


def _cautions(points: Sequence[PointResult]) -> Iterator[str]:
    """What makes valid figures weaker than they look."""
    counts = [s.count for p in points for s in (p.off.ttft_ms, p.on.ttft_ms) if s]
    if counts and min(counts) < FEW_REQUESTS:
        yield f"A mean is over {min(counts)} requests only: raise sweep.repeats for figures to rely on."
    apart = [
        f"{off.mean:,.0f} ms OFF and {on.mean:,.0f} ms ON at {point.prompt_length:,} tokens"
        for point in points
        if (off := point.off.first_turn_prefill_ms)
        and (on := point.on.first_turn_prefill_ms)
        and max(off.mean, on.mean) > FIRST_TURNS_APART * min(off.mean, on.mean)
    ]
    if apart:
        yield (
            f"Both legs compute a first turn whole, yet prefill takes {'; '.join(apart)}: one leg had less "
            "of the machine. (On CPU, a vLLM decode engine that holds blocks for a next turn never sleeps.)"
        )


def ran_on(settings: Deployment, nodes: dict[str, Any]) -> dict[str, Any]:
    """What the sweep ran on; `summary` and `hardware` are lines for titles."""
    target, legs = settings.target, settings.legs
    engines = f"{legs.prefill.replicas} prefill + {legs.decode.replicas} decode"
    backends = "+".join(settings.kv.backends)
    told = {
        "target": target.kind,
        "engines": engines,
        "kv_backends": list(settings.kv.backends),
        "nodes": nodes,
        "hardware": _hardware(nodes),
    }
    if isinstance(target, EmbeddedTarget):
        return {**told, "device": "cpu", "summary": f"one machine, CPU engines, {engines}, {backends}"}
    tensor_parallel = {"prefill": legs.prefill.tensor_parallel, "decode": legs.decode.tensor_parallel}
    gpus = f"TP{legs.prefill.tensor_parallel}+TP{legs.decode.tensor_parallel}"
    return {
        **told,
        "device": settings.kv.buffer_device,
        "cluster": target.cluster_name,
        "region": target.region,
        "tensor_parallel": tensor_parallel,
        "summary": f"{target.cluster_name} ({target.region}), {engines}, {gpus}, {backends}",
    }


def _hardware(nodes: dict[str, Any]) -> str:
    """The engines' hardware, each kind once; a node is told as `name: hardware`."""
    engines = [str(node) for job, node in nodes.items() if job.startswith(("prefill", "decode"))]
    return "; ".join(dict.fromkeys(node.partition(": ")[2] or node for node in engines))


def stats(values: Sequence[float]) -> Stats | None:
    if not values:
        return None
    # With one value quantiles() has nothing to interpolate.
    p90 = statistics.quantiles(values, n=10, method="inclusive")[8] if len(values) > 1 else values[0]
    return Stats(len(values), statistics.fmean(values), statistics.median(values), p90)


def _point(length: int, data: SweepData) -> PointResult:
    off, on = _leg(length, data.off), _leg(length, data.on)
    readback = _readback(data.kv.get(length), length, data.on)
    compute = on.prefill_ms.mean - readback.ms if on.prefill_ms and readback else None
    return PointResult(
        prompt_length=length,
        off=off,
        on=on,
        kv_transfer=readback,
        on_compute_ms=compute,
        ttft_ratio=_ratio_of(off.ttft_ms, on.ttft_ms),
        prefill_ratio=_ratio_of(off.prefill_ms, on.prefill_ms),
    )


def _leg(length: int, leg: LegData) -> LegFigures:
    rows = [row for row in leg.rows if row.prompt_length == length and row.error is None]
    later = [row for row in rows if row.turn > 1]
    first = [row for row in rows if row.turn == 1]
    return LegFigures(
        ttft_ms=stats([row.ttft_ms for row in later]),
        prefill_ms=stats(_prefill(later)),
        first_turn_ttft_ms=stats([row.ttft_ms for row in first]),
        first_turn_prefill_ms=stats(_prefill(first)),
    )


def _prefill(rows: Iterable[Row]) -> list[float]:
    return [row.prefill_ms for row in rows if row.prefill_ms is not None]


def _readback(kv: KvTransfers | None, length: int, leg: LegData) -> Readback | None:
    readbacks = sum(1 for row in leg.rows if row.prompt_length == length and row.path == "readback")
    if kv is None or not readbacks:
        return None
    return Readback(
        readbacks=readbacks,
        transfers=kv.transfers,
        ms=kv.mean_ms,
        p90_ms=kv.p90_ms,
        post_ms=kv.post_ms,
        mb=kv.total_mb / readbacks,
        descriptors=kv.descriptors,
    )


def _ratio_of(off: Stats | None, on: Stats | None) -> float | None:
    return ratio(off.mean if off else None, on.mean if on else None)


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b; None if either is unknown or 0, or if b is too small for a number to hold the ratio."""
    quotient = a / b if a and b else math.inf
    return quotient if math.isfinite(quotient) else None
