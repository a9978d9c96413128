"""How a stack's creation, update or deletion unfolds: events and states on a clock from 0 to 1. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STACK = "AWS::CloudFormation::Stack"
HEAD_NODE, HEAD_WAIT = "HeadNode", "HeadNodeWaitCondition"


@dataclass(frozen=True)
class Resource:
    name: str
    kind: str
    physical_id: str
    retained: bool = False


@dataclass(frozen=True)
class Fault:
    """The resource that fails (by name, else the first of that type), and CloudFormation's reason."""

    resource: str
    reason: str


@dataclass(frozen=True)
class Moment:
    at: float
    resource: Resource
    status: str
    reason: str = ""


@dataclass(frozen=True)
class Timeline:
    """`states`: the stack's status from each moment on, the first at 0. Resources with DeletionPolicy Retain
    are left when a creation is rolled back, too, unless they had not been made."""

    moments: tuple[Moment, ...]
    states: tuple[tuple[float, str], ...]

    def status(self, clock: float) -> str:
        return [status for at, status in self.states if at <= clock][-1]

    @property
    def left(self) -> frozenset[str]:
        """Names of resources that are there when the stack is not."""
        return frozenset(each.resource.name for each in self.moments if each.status == "DELETE_SKIPPED")

    def until(self, clock: float) -> tuple[Moment, ...]:
        return tuple(moment for moment in self.moments if moment.at <= clock)


def creation(
    stack: Resource, resources: Sequence[Resource], fault: Fault | None, *, rollback: bool
) -> Timeline:
    spans = [
        (resource, *_span(resource, position, len(resources))) for position, resource in enumerate(resources)
    ]
    broken = _broken(resources, fault) if fault else None
    moments = [Moment(0.0, stack, "CREATE_IN_PROGRESS", "User Initiated")]
    if broken is None or fault is None:
        for resource, start, end in spans:
            moments.append(Moment(start, resource, "CREATE_IN_PROGRESS"))
            moments.append(Moment(end, resource, "CREATE_COMPLETE"))
        moments.append(Moment(1.0, stack, "CREATE_COMPLETE"))
        return _ordered(moments, [(0.0, "CREATE_IN_PROGRESS"), (1.0, "CREATE_COMPLETE")])
    failed_at = next(end for resource, _, end in spans if resource is broken) * 0.85
    made = []
    for resource, start, end in spans:
        if start > failed_at:
            continue
        moments.append(Moment(start, resource, "CREATE_IN_PROGRESS"))
        if resource is broken:
            moments.append(Moment(failed_at, resource, "CREATE_FAILED", fault.reason))
        elif end <= failed_at:
            moments.append(Moment(end, resource, "CREATE_COMPLETE"))
            made.append(resource)
        else:
            moments.append(Moment(failed_at, resource, "CREATE_FAILED", "Resource creation cancelled"))
    told = f"The following resource(s) failed to create: [{broken.name}]."
    if not rollback:
        moments.append(Moment(failed_at, stack, "CREATE_FAILED", told))
        return _ordered(moments, [(0.0, "CREATE_IN_PROGRESS"), (failed_at, "CREATE_FAILED")])
    moments.append(Moment(failed_at, stack, "ROLLBACK_IN_PROGRESS", f"{told} Rollback requested by user."))
    moments += _removal(made, failed_at)
    moments.append(Moment(1.0, stack, "ROLLBACK_COMPLETE"))
    states = [(0.0, "CREATE_IN_PROGRESS"), (failed_at, "ROLLBACK_IN_PROGRESS"), (1.0, "ROLLBACK_COMPLETE")]
    return _ordered(moments, states)


def update(stack: Resource, resources: Sequence[Resource]) -> Timeline:
    moments = [Moment(0.0, stack, "UPDATE_IN_PROGRESS", "User Initiated")]
    for resource in resources:
        if resource.kind == "AWS::EC2::LaunchTemplate" or resource.name.endswith("WaitCondition"):
            moments += [Moment(0.3, resource, "UPDATE_IN_PROGRESS"), Moment(0.7, resource, "UPDATE_COMPLETE")]
    moments.append(Moment(1.0, stack, "UPDATE_COMPLETE"))
    return _ordered(moments, [(0.0, "UPDATE_IN_PROGRESS"), (1.0, "UPDATE_COMPLETE")])


def deletion(stack: Resource, resources: Sequence[Resource]) -> Timeline:
    moments = [Moment(0.0, stack, "DELETE_IN_PROGRESS", "User Initiated"), *_removal(resources, 0.0)]
    moments.append(Moment(1.0, stack, "DELETE_COMPLETE"))
    return _ordered(moments, [(0.0, "DELETE_IN_PROGRESS"), (1.0, "DELETE_COMPLETE")])


def _span(resource: Resource, position: int, count: int) -> tuple[float, float]:
    """The head node waits for most others, its wait condition takes as long as all before it."""
    if resource.name == HEAD_NODE:
        return 0.3, 0.36
    if resource.name.startswith(HEAD_WAIT) and "Handle" not in resource.name:
        return 0.38, 0.97
    start = 0.02 + 0.25 * position / max(count, 1)
    return start, start + 0.03


def _broken(resources: Sequence[Resource], fault: Fault) -> Resource | None:
    named = [each for each in resources if each.name == fault.resource]
    named += [
        each for each in resources if each.name.startswith(fault.resource) and "Handle" not in each.name
    ]
    return next(iter(named + [each for each in resources if each.kind == fault.resource]), None)


def _removal(resources: Sequence[Resource], start: float) -> list[Moment]:
    moments = []
    for position, resource in enumerate(reversed(resources)):
        at = start + (1.0 - start) * 0.9 * position / max(len(resources), 1)
        if resource.retained:
            moments.append(Moment(at, resource, "DELETE_SKIPPED"))
            continue
        moments.append(Moment(at, resource, "DELETE_IN_PROGRESS"))
        moments.append(Moment(at + (1.0 - start) * 0.05, resource, "DELETE_COMPLETE"))
    return moments


def _ordered(moments: list[Moment], states: list[tuple[float, str]]) -> Timeline:
    return Timeline(tuple(sorted(moments, key=lambda moment: moment.at)), tuple(states))
