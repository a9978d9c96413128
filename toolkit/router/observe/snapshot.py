"""GET /router/state: what the operator page shows, as JSON."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from time import monotonic, time
from typing import Any

import orjson

from toolkit import __version__
from toolkit.router.observe.live import Live
from toolkit.router.observe.metrics import Metrics
from toolkit.router.observe.recent import Recent, Row

CONTENT_TYPE = "application/json"
REQUESTS_SHOWN = 100
# Of fewer samples the 95th percentile would be the largest one by another name.
P95_NEEDS = 20
# How long one snapshot serves everybody who asks: many open pages cost no more than one.
FRESH_S = 0.5
RATE_OVER_S = 60.0

# Milliseconds, six steps a decade from 1 ms to 100 s.
EDGES_MS = (
    *(round(step * 10**decade, 1) for decade in range(5) for step in (1, 1.5, 2, 3, 5, 7)),
    100_000,
)


@dataclass(frozen=True, slots=True)
class Sources:
    """What a snapshot is made of."""

    live: Live
    metrics: Metrics
    recent: Recent


class Snapshots:
    """Makes snapshots, at most one in FRESH_S seconds of `clock` (monotonic)."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = monotonic) -> None:
        self._sources = sources
        self._clock = clock
        self._made_at = 0.0
        self._body = b""

    def body(self) -> bytes:
        """The newest snapshot as JSON; its content type is CONTENT_TYPE."""
        now = self._clock()
        if not self._body or now - self._made_at >= FRESH_S:
            # Names of paths may be members of an enum, which are no plain strings to orjson.
            self._body = orjson.dumps(snapshot(self._sources), option=orjson.OPT_NON_STR_KEYS)
            self._made_at = now
        return self._body


def snapshot(sources: Sources, now: float | None = None) -> dict[str, Any]:
    """The state of the router at `now`, if it is not this moment. Times are Unix seconds."""
    metrics = sources.metrics
    now = time() if now is None else now
    rows = sources.recent.all()
    return {
        "router": {
            "version": __version__,
            "time": now,
            "started": metrics.started_at,
            "uptime_s": now - metrics.started_at,
        },
        "legs": _legs(sources),
        "queue": _queue(sources.live),
        "requests": _requests(metrics),
        "conversations": _conversations(sources),
        "paths": _paths(metrics),
        "window": _window(rows, sources.recent.size, now),
        "latency": _latency(rows),
        "recent": [row._asdict() for row in sources.recent.latest(REQUESTS_SHOWN)],
    }


def _legs(sources: Sources) -> list[dict[str, Any]]:
    return [
        {
            "role": leg.role,
            "url": leg.url,
            "healthy": leg.healthy,
            "draining": leg.draining,
            "in_flight": leg.in_flight,
            "pending_tokens": leg.pending_tokens,
            "failures": sources.metrics.failures_of(leg.role, leg.url),
        }
        for leg in sources.live.legs()
    ]


def _queue(live: Live) -> dict[str, int]:
    places = live.admission
    return {
        "in_flight": live.in_flight(),
        "running": places.running,
        "waiting": places.waiting,
        "max_concurrent": live.limits.running,
        "max_queue": live.limits.waiting,
    }


def _requests(metrics: Metrics) -> dict[str, Any]:
    """Since the start, of every endpoint; a status that no answer had is "none"."""
    outcomes: dict[str, int] = {}
    statuses: dict[str, int] = {}
    for (_, status, _, outcome), count in metrics.requests.items():
        outcomes[outcome] = outcomes.get(outcome, 0) + count
        name = str(status or "none")
        statuses[name] = statuses.get(name, 0) + count
    return {
        "total": metrics.requests.total(),
        "outcomes": outcomes,
        "statuses": statuses,
        "retries": metrics.retries,
        "client_gone": metrics.client_gone,
        "refusals": {str(status): count for status, count in metrics.refusals.items()},
    }


def _conversations(sources: Sources) -> dict[str, Any]:
    kept, limits, metrics = sources.live.conversations, sources.live.limits, sources.metrics
    turns = metrics.readbacks.total()
    return {
        "count": len(kept),
        "max_count": limits.conversations,
        "bytes": kept.bytes,
        "max_bytes": limits.map_bytes,
        "events": dict(kept.events),
        "turns": turns,
        "readback": dict(metrics.readbacks),
        "hit_rate": metrics.readbacks["hit"] / turns if turns else None,
        "declined": dict(metrics.declined),
        "leases": dict(sources.live.leases()),
        "prompt_tokens": metrics.prompt_tokens,
        "kv_read_tokens": metrics.kv_read_tokens,
    }


def _paths(metrics: Metrics) -> list[dict[str, Any]]:
    """Most used first, and so are the reasons of each."""
    by_path: dict[str, list[tuple[str, int]]] = {}
    for (path, reason), count in metrics.paths.most_common():
        by_path.setdefault(path, []).append((reason, count))
    rows = [
        {
            "path": path,
            "count": sum(count for _, count in reasons),
            "reasons": [{"reason": reason, "count": count} for reason, count in reasons],
        }
        for path, reasons in by_path.items()
    ]
    return sorted(rows, key=lambda row: -row["count"])


def _window(rows: list[Row], size: int, now: float) -> dict[str, Any]:
    """What the ring holds: up to `size` requests, the oldest of which ended at `since`."""
    since = rows[0].at if rows else None
    return {
        "size": size,
        "requests": len(rows),
        "since": since,
        "failed": sum(row.failed for row in rows),
        "refused": sum(row.outcome == "refused" and not row.failed for row in rows),
        "client_gone": sum(row.outcome == "client-gone" for row in rows),
        "per_s": _rate(rows, size, now),
    }


def _rate(rows: list[Row], size: int, now: float) -> float:
    """Requests a second in the last minute, or since the oldest row where a full ring reaches less far."""
    span = now - rows[0].at if len(rows) == size else RATE_OVER_S
    begin = now - min(RATE_OVER_S, span)
    return sum(row.at >= begin for row in rows) / max(now - begin, 1)


def _latency(rows: list[Row]) -> dict[str, Any]:
    """Of the rows in the ring only, by path."""
    paths = sorted({row.path for row in rows if row.path is not None})
    return {
        "edges_ms": EDGES_MS,
        "ttft": {path: _spread(row.ttft_ms for row in rows if row.path == path) for path in paths},
        "prefill": {path: _spread(row.prefill_ms for row in rows if row.path == path) for path in paths},
    }


def _spread(values: Iterable[float | None]) -> dict[str, Any]:
    """Bucket counts (below the first edge, between edges, beyond the last) and nearest-rank percentiles."""
    samples = sorted(value for value in values if value is not None)
    counts = [0] * (len(EDGES_MS) + 1)
    for value in samples:
        counts[bisect_left(EDGES_MS, value)] += 1
    return {
        "samples": len(samples),
        "counts": counts,
        "p50_ms": _percentile(samples, 50),
        "p95_ms": _percentile(samples, 95) if len(samples) >= P95_NEEDS else None,
    }


def _percentile(ordered: list[float], percent: int) -> float | None:
    return ordered[ceil(len(ordered) * percent / 100) - 1] if ordered else None
