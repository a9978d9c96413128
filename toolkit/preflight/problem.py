"""A problem: what a check says about a planned cluster. The checks' only product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """`key` is the setting to change, `where` its value came from, `check` the rule that found it."""

    level: Level
    key: str
    value: str
    where: str
    reason: str
    next_step: str
    check: str = ""

    @property
    def is_error(self) -> bool:
        return self.level == "error"

    def __str__(self) -> str:
        given = f"{self.key} = {self.value} ({self.where})" if self.key else ""
        what = f"{given}: {self.reason}" if given else self.reason
        return f"{self.level}: {what}\nNext: {self.next_step}"
