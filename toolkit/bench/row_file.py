"""rows.jsonl as the client keeps it: appended a line at a time, cleaned of half conversations on resume."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from toolkit.errors import ToolkitError
from toolkit.plan.row import Row

ROW = TypeAdapter(Row)


class RowFile:
    """The rows of one leg. `attempt` counts the client's starts on this file, from 1."""

    def __init__(self, path: Path, turns: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        rows = _read(path)
        good = Counter(row.conversation for row in rows if row.error is None)
        self.complete = frozenset(name for name, turns_done in good.items() if turns_done == turns)
        self.attempt = _count_start(path.with_name("client.json"))
        kept = [row for row in rows if row.conversation in self.complete]
        _replace(path, "".join(_line(row) for row in kept))

    def append(self, row: Row) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(row))


def _line(row: Row) -> str:
    return json.dumps(asdict(row)) + "\n"


def _read(path: Path) -> list[Row]:
    """The rows there are; a line cut short by a killed client belongs to a conversation that runs again."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            rows.append(ROW.validate_json(line))
        except ValidationError:
            print(f"dropped a line of {path} that is no row: {line[:80]!r}", file=sys.stderr)
    return rows


def _count_start(path: Path) -> int:
    """client.json: how often the client started, and its node's zone (engine logs have local times)."""
    attempt = 1 + (_attempts(path) if path.exists() else 0)
    _replace(path, json.dumps({"attempts": attempt, "utc_offset_s": time.localtime().tm_gmtoff}) + "\n")
    return attempt


def _attempts(path: Path) -> int:
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["attempts"])
    except (ValueError, KeyError, TypeError) as error:
        raise ToolkitError(
            f"{path} is damaged ({type(error).__name__}).", next_step="run the sweep under another --name"
        ) from error


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
