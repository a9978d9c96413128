"""rows.jsonl of one leg, read and checked; whatever is no row is told, not skipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from toolkit.errors import ToolkitError
from toolkit.plan.row import Row

ROW = TypeAdapter(Row)


@dataclass(frozen=True)
class RowsRead:
    """`problems`: a sentence for each line that is no row."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...]


def read_rows(path: Path) -> RowsRead:
    """Raises ToolkitError if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ToolkitError(
            f"{path} is missing: this leg has no benchmark rows",
            next_step="run the sweep (`toolkit sweep run`, or `toolkit sweep resume` if it stopped)",
        ) from error
    rows, problems = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            rows.append(ROW.validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            problems.append(f"{path.parent.parent.name}/{path.name} line {number}: {where} {first['msg']}")
    if text and not text.endswith("\n"):
        problems.append(f"{path.parent.parent.name}/{path.name}: the last line is cut short")
    return RowsRead(tuple(rows), tuple(problems))
