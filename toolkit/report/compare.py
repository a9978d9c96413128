"""Two built sweeps side by side: what their results.json must hold, and a line for each prompt length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from toolkit.report.results import ratio

Line = dict[str, float | int | None]


@dataclass(frozen=True)
class BuiltStats:
    mean: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class BuiltLeg:
    ttft_ms: BuiltStats | None


@dataclass(frozen=True)
class BuiltPoint:
    prompt_length: int
    off: BuiltLeg
    on: BuiltLeg


@dataclass(frozen=True)
class Built:
    """The part of a results.json that is compared; `toolkit.report.results.Results` writes it."""

    valid: Annotated[bool, Field(strict=True)]
    points: Annotated[tuple[BuiltPoint, ...], Field(min_length=1)]


def compare_results(first: Built, second: Built) -> list[Line]:
    """A line for each prompt length of either sweep: mean TTFT (ms) of both legs, and first / second."""
    a, b = ({point.prompt_length: point for point in built.points} for built in (first, second))
    return [_line(length, a.get(length), b.get(length)) for length in sorted(a.keys() | b.keys())]


def _line(length: int, first: BuiltPoint | None, second: BuiltPoint | None) -> Line:
    line: Line = {"prompt_length": length}
    for name in ("off", "on"):
        a, b = (_mean(getattr(point, name, None)) for point in (first, second))
        line |= {f"{name}_first": a, f"{name}_second": b, f"{name}_ratio": ratio(a, b)}
    return line


def _mean(leg: BuiltLeg | None) -> float | None:
    return leg.ttft_ms.mean if leg and leg.ttft_ms else None
