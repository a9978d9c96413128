"""Stacks that take time: moto makes, updates and deletes them at once, AWS in minutes and with events.

Time passes when a request comes: `Lives.advance` brings each stack to where it would be by now.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.cloudformation.models import Event
from moto.cloudformation.parsing import OutputMap

from toolkit.testing.aws.simulation import simulation
from toolkit.testing.aws.timeline import STACK, Resource, Timeline

Stage = tuple[float, Callable[[], None]]


@dataclass
class Life:
    """One creation, update or deletion of a moto stack. `stages` are done once, when their moment comes.
    `unseen`: it can't end before DescribeStacks has shown it (pcluster asks once more after a deletion)."""

    stack: Any
    timeline: Timeline
    seconds: float
    stages: list[Stage] = field(default_factory=list)
    unseen: bool = False
    began: float = field(default_factory=time.monotonic)
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))
    told: int = 0

    @property
    def clock(self) -> float:
        elapsed = time.monotonic() - self.began
        clock = min(1.0, elapsed / self.seconds) if self.seconds > 0 else 1.0
        return min(clock, 0.99) if self.unseen or simulation.scenario.hold else clock

    def advance(self) -> bool:
        """Brings the stack up to now; True when it has ended."""
        clock = self.clock
        self.stack.status = self.timeline.status(clock)
        passed = self.timeline.until(clock)
        for moment in passed[self.told :]:
            event = Event(
                stack_id=self.stack.stack_id,
                stack_name=self.stack.name,
                logical_resource_id=moment.resource.name,
                physical_resource_id=moment.resource.physical_id,
                resource_type=moment.resource.kind,
                resource_status=moment.status,
                resource_status_reason=moment.reason or None,
                resource_properties=None,
            )
            event.timestamp = self.began_at + timedelta(seconds=moment.at * self.seconds)
            self.stack.events.append(event)
        self.told = len(passed)
        due = [stage for stage in self.stages if stage[0] <= clock]
        self.stages = [stage for stage in self.stages if stage[0] > clock]
        for _, act in sorted(due, key=lambda stage: stage[0]):
            act()
        return clock >= 1.0


class Lives:
    def __init__(self) -> None:
        self._lives: dict[str, Life] = {}

    def begin(self, life: Life) -> None:
        self._lives[life.stack.stack_id] = life

    def advance(self) -> None:
        for name, life in list(self._lives.items()):
            if life.advance() and self._lives.get(name) is life:
                del self._lives[name]

    def seen(self, stack_id: str) -> None:
        if life := self._lives.get(stack_id):
            life.unseen = False

    def failure_of(self, physical_id: str) -> str:
        """The reason why the resource of that id failed, "" if it has not, of a stack in life."""
        for life in self._lives.values():
            for moment in life.timeline.until(life.clock):
                if moment.resource.physical_id == physical_id and moment.status.endswith("FAILED"):
                    return moment.reason
        return ""

    def forget(self) -> None:
        self._lives.clear()


lives = Lives()


def resources_of(stack: Any) -> list[Resource]:
    documents = stack.resource_map._resource_json_map
    # Moto's models of single rules have no physical id.
    made = {
        each.logical_resource_id: str(getattr(each, "physical_resource_id", each.logical_resource_id))
        for each in stack.stack_resources
        if each
    }
    return [
        Resource(name, each["Type"], made.get(name, name), each.get("DeletionPolicy") == "Retain")
        for name, each in documents.items()
    ]


def roll_back(stack: Any, left: frozenset[str]) -> None:
    """Takes down all that the stack has made but what is `left`; moto leaves everything."""
    resources = stack.resource_map
    resources._resource_json_map = {
        name: {**each, "DeletionPolicy": "Retain" if name in left else "Delete"}
        for name, each in resources._resource_json_map.items()
    }
    resources.delete()
    # Moto would make again whatever is still in the list when it is asked for.
    resources._resource_json_map = {
        name: each for name, each in resources._resource_json_map.items() if name in left
    }
    stack.output_map = OutputMap(resources, {}, stack.stack_id)


def stack_itself(stack: Any) -> Resource:
    return Resource(stack.name, STACK, stack.stack_id)
