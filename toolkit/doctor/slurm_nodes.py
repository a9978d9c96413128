"""Slurm's nodes and partitions from its own output. Pure.

`scontrol show nodes --json` (23.02 and later) or `sinfo --json` (22.05): both hold `nodes`; 22.05 writes the
state as one word with `state_flags` beside it and numbers plain, later ones a list and {set, number}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError

INVALID = "INVALID_REG"
SILENT = "NOT_RESPONDING"
UNFIT = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", INVALID})
POWER = frozenset({"POWERING_UP", "POWER_UP", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})


@dataclass(frozen=True)
class SlurmNode:
    """`states`: Slurm's words, the base state first; `gpus`: configured in its gres."""

    name: str
    states: tuple[str, ...]
    reason: str
    partitions: tuple[str, ...]
    gpus: int
    address: str
    reason_at: float

    @property
    def unfit(self) -> bool:
        # A cloud node without a running slurmd does not respond, and that is no fault.
        silent = SILENT in self.states and not POWER.intersection(self.states)
        return silent or bool(UNFIT.intersection(self.states))

    @property
    def powered_down(self) -> bool:
        """A cloud node that waits for work: healthy, but there is no instance."""
        return bool({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"}.intersection(self.states))

    @property
    def in_use(self) -> bool:
        return bool({"ALLOCATED", "MIXED", "COMPLETING"}.intersection(self.states))

    @property
    def powering_up(self) -> bool:
        return bool({"POWERING_UP", "POWER_UP"}.intersection(self.states)) and not self.unfit

    @property
    def probed(self) -> bool:
        """Whether a step may be started on it."""
        return not (self.unfit or self.powered_down or self.powering_up)

    @property
    def state(self) -> str:
        return "+".join(self.states)


@dataclass(frozen=True)
class SlurmPartition:
    name: str
    state: str  # UP, DOWN, DRAIN, INACTIVE


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Raises ToolkitError for anything but Slurm's node list."""
    try:
        return tuple(map(_node, json.loads(text)["nodes"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolkitError(
            f"Slurm's list of nodes can't be read: {text[:200]!r}.",
            next_step="run `sinfo --json` on the head node; Slurm 22.05 or later is needed",
        ) from error


def _node(node: Mapping[str, Any]) -> SlurmNode:
    states = node["state"]
    words = [states, *node.get("state_flags", [])] if isinstance(states, str) else states
    gpus = [int(count) for count in re.findall(r"gpu:(?:[^:,()]+:)?(\d+)", node.get("gres") or "")]
    return SlurmNode(
        name=node["name"],
        states=tuple(str(word).upper() for word in words),
        reason=node.get("reason") or "",
        partitions=tuple(node.get("partitions") or ()),
        gpus=sum(gpus),
        address=node.get("address") or "",
        reason_at=_number(node.get("reason_changed_at")),
    )


def _number(value: Mapping[str, Any] | float | None) -> float:
    if isinstance(value, Mapping):
        return float(value["number"]) if value["set"] else 0
    return float(value or 0)


def parse_partitions(text: str) -> tuple[SlurmPartition, ...]:
    """`scontrol show partition --oneliner`."""
    found = []
    for line in text.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        if "PartitionName" in words:
            found.append(SlurmPartition(words["PartitionName"], words.get("State", "")))
    return tuple(found)
