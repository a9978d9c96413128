"""PURE: a report as text."""

from __future__ import annotations

from collections.abc import Sequence

from bench.router.cited import Cited
from bench.router.results import Report, Row

_HEAD = ("", "", "ours", "vllm-router", "ratio", "bound", "holds", "")


def text(report: Report, cited: Sequence[Cited]) -> str:
    """The machine, the table, what to know of it, and the verdict."""
    lines = [f"{name}: {value}" for name, value in (report.machine | report.commands).items()]
    lines += [
        "",
        *_aligned([_HEAD, *map(_cells, report.rows)]),
        *(f"! {remark}" for remark in report.remarks),
    ]
    if report.map_cost:
        lines += ["", "Our map of conversations:", *(f"  {line.strip()}" for line in report.map_cost)]
    if cited:
        lines += ["", "Not measured in this run, for comparison:"]
        lines += [f"  {one.what}: {one.value} ({one.source})" for one in cited]
    return "\n".join([*lines, "", *_verdict(report)])


def _verdict(report: Report) -> list[str]:
    broken = [row.what for row in report.rows if row.holds is False]
    unjudged = [row.what for row in report.rows if row.unjudged]
    lines = [f"NOT HELD: {'; '.join(broken)}"] if broken else []
    if unjudged:
        lines.append(f"NOT JUDGED, the floor of this machine is above the bound: {'; '.join(unjudged)}")
    return lines or ["all bounds hold"]


def _cells(row: Row) -> tuple[str, ...]:
    notes = [row.note] if row.note else []
    if row.floor is not None:
        notes.append(f"floor {_number(row.floor)}")
    if row.noisy:
        notes.append("noisy")
    return (
        row.what,
        row.unit,
        _number(row.ours),
        "" if row.peer is None else _number(row.peer),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        row.bound,
        "?" if row.unjudged else {True: "yes", False: "NO", None: ""}[row.holds],
        "; ".join(notes),
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = {2, 3, 4}
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
