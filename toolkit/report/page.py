"""index.html of a sweep: verdict, figures, numbers, every request. Everything shown is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from toolkit.report.results import PointResult, Results, Stats


def render_page(results: Results) -> str:
    """The page; it needs ttft.png and prefill.png beside it and nothing else."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("toolkit.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["ms"] = _ms
    environment.filters["ratio"] = _ratio
    template = environment.get_template("page.html.j2")
    return template.render(
        results=results,
        measured=_measured(results),
        numbers=[_numbers(point) for point in results.points],
        spread=[_spread(point) for point in results.points],
        first_turns=[_first_turns(point) for point in results.points],
        settings=list(flatten(results.settings)),
        software=list(flatten(results.software)),
        ran_on=list(flatten(results.ran_on)),
    )


def _measured(results: Results) -> str:
    """When the first and the last request were sent, UTC; the client's node keeps the time."""
    if not results.rows:
        return "no request was sent"
    times = [datetime.fromtimestamp(row.started_at, UTC) for row in results.rows]
    return f"{min(times):%Y-%m-%d %H:%M} to {max(times):%H:%M} UTC"


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """`{"a": {"b": 1}}` as ("a.b", "1"): nested settings as the dotted keys that --set takes."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        yield prefix, json.dumps(value, ensure_ascii=False)
    elif isinstance(value, str):
        yield prefix, value
    else:
        yield prefix, json.dumps(value)


def _numbers(point: PointResult) -> list[str]:
    kv = point.kv_transfer
    return [
        f"{point.prompt_length:,}",
        _mean(point.off.ttft_ms),
        _mean(point.on.ttft_ms),
        _ratio(point.ttft_ratio),
        _mean(point.off.prefill_ms),
        _mean(point.on.prefill_ms),
        _ratio(point.prefill_ratio),
        _ms(point.on_compute_ms),
        _ms(kv.ms if kv else None),
        _ms(kv.mb if kv else None),
    ]


def _spread(point: PointResult) -> list[str]:
    kv = point.kv_transfer
    return [
        f"{point.prompt_length:,}",
        *(_both(each) for each in (point.off.ttft_ms, point.on.ttft_ms)),
        *(_both(each) for each in (point.off.prefill_ms, point.on.prefill_ms)),
        _ms(kv.p90_ms if kv else None),
        str(kv.transfers if kv else 0),
        f"{kv.descriptors:,.0f}" if kv else "–",
        " / ".join(str(each.count if each else 0) for each in (point.off.ttft_ms, point.on.ttft_ms)),
    ]


def _first_turns(point: PointResult) -> list[str]:
    return [
        f"{point.prompt_length:,}",
        _mean(point.off.first_turn_ttft_ms),
        _mean(point.on.first_turn_ttft_ms),
        _mean(point.off.first_turn_prefill_ms),
        _mean(point.on.first_turn_prefill_ms),
    ]


def _mean(of: Stats | None) -> str:
    return _ms(of.mean if of else None)


def _both(of: Stats | None) -> str:
    return f"{_ms(of.median)} / {_ms(of.p90)}" if of else "–"


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"
