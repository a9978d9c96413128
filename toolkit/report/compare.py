"""Two built sweeps side by side. Pure."""

from __future__ import annotations

from typing import Any


def compare_results(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, float | int | None]]:
    """A line for each prompt length of either sweep: mean TTFT (ms) of both legs, and first / second."""
    a, b = (_ttft_by_length(results) for results in (first, second))
    return [_line(length, a.get(length, {}), b.get(length, {})) for length in sorted(a.keys() | b.keys())]


def _ttft_by_length(results: dict[str, Any]) -> dict[int, dict[str, float | None]]:
    return {
        point["prompt_length"]: {leg: _mean(point[leg]) for leg in ("off", "on")}
        for point in results["points"]
    }


def _mean(leg: dict[str, Any]) -> float | None:
    return leg["ttft_ms"]["mean"] if leg["ttft_ms"] else None


def _line(
    length: int, first: dict[str, float | None], second: dict[str, float | None]
) -> dict[str, float | int | None]:
    line: dict[str, float | int | None] = {"prompt_length": length}
    for leg in ("off", "on"):
        a, b = first.get(leg), second.get(leg)
        line |= {f"{leg}_first": a, f"{leg}_second": b, f"{leg}_ratio": a / b if a and b else None}
    return line
