"""Calls that the stand-in answered, as it records them: one JSON line each."""

from __future__ import annotations

import json
from dataclasses import dataclass

_READING = ("Describe", "Get", "List", "Head", "Lookup", "Filter", "Query", "Scan", "BatchGet", "Simulate")


@dataclass(frozen=True)
class Call:
    """`ok`: the answer was no error; `dry_run`: EC2 was asked only whether it would do it."""

    service: str
    operation: str
    ok: bool
    dry_run: bool = False

    @property
    def creating(self) -> bool:
        """True for whatever makes, changes or removes something."""
        return not self.dry_run and not self.operation.startswith(_READING)

    def __str__(self) -> str:
        return f"{self.service}.{self.operation}"


def parse_calls(lines: str) -> tuple[Call, ...]:
    return tuple(Call(**json.loads(line)) for line in lines.splitlines() if line)
