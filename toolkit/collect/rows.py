"""rows.jsonl of one leg, read and checked; whatever is no row is told, not skipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from toolkit.collect.sweep_file import read_text
from toolkit.plan.row import Row

ROW = TypeAdapter(Row)
DAY_MS = 86_400_000
# 2020 and 2100, Unix seconds: outside of them a node's clock was not set.
NOT_BEFORE, NOT_AFTER = 1_577_836_800, 4_102_444_800
# Outside of its bounds a value was not measured, and means would carry it on; NaN is outside of any.
BOUNDS: dict[str, tuple[float, float]] = {
    "prompt_length": (1, 1e9),
    "turn": (1, 1e9),
    "prompt_tokens": (0, 1e9),
    "output_tokens": (0, 1e9),
    "ttft_ms": (0, DAY_MS),
    "total_ms": (0, DAY_MS),
    "prefill_ms": (0, DAY_MS),
    "kv_read_tokens": (0, 1e9),
    "first_token": (0, 1e9),
    # The logarithm of 1 is 0; engines round.
    "first_logprob": (-1e9, 0.01),
    "started_at": (NOT_BEFORE, NOT_AFTER),
}


@dataclass(frozen=True)
class RowsRead:
    """`problems`: a sentence for each line that is no row, or holds a value that none can have."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...]


def read_rows(path: Path) -> RowsRead:
    """Raises ToolkitError if the file is missing or cannot be read."""
    text = read_text(path)
    told = f"{path.parent.parent.name}/{path.name}"
    rows, problems = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = ROW.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            problems.append(f"{told} line {number}: {where} {first['msg']}")
            continue
        if outside := _outside(row):
            problems.append(f"{told} line {number}: {outside}")
        else:
            rows.append(row)
    if text and not text.endswith("\n"):
        problems.append(f"{told}: the last line is cut short")
    return RowsRead(tuple(rows), tuple(problems))


def _outside(row: Row) -> str | None:
    values = [(name, getattr(row, name), bounds) for name, bounds in BOUNDS.items()]
    for token, logprob in (row.first_top or {}).items():
        values.append(("first_top token", token, BOUNDS["first_token"]))
        values.append(("first_top log-probability", logprob, BOUNDS["first_logprob"]))
    for name, value, (low, high) in values:
        if value is not None and not low <= value <= high:
            return f"{name} {str(value)[:30]} is impossible, bounds are {low:.10g} and {high:.10g}"
    return None
