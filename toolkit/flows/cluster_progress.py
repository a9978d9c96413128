"""Following a cluster's stack until it stands, failed or is gone: the phase it is in, and each resource done.

All of it is read from AWS anew, so that a toolkit that was stopped goes on where it was.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from toolkit.errors import ToolkitError
from toolkit.remote.aws_instances import ClusterInstance, cluster_instances
from toolkit.remote.aws_stack import StackState, stack_events, stack_state
from toolkit.remote.pcluster_answer import StackEvent

Progress = Callable[[str], None]

POLL_SECONDS = 5.0  # once it is clear that it takes minutes; every second at first
# AWS may be out of reach for a moment; the cluster's creation goes on meanwhile.
PATIENCE_SECONDS = 120.0
INSTANCE, WAIT = "AWS::EC2::Instance", "AWS::CloudFormation::WaitCondition"
STACK = "AWS::CloudFormation::Stack"
# What takes long or is waited for; a cluster has some fifty resources more.
LANDMARKS = (INSTANCE, WAIT, STACK, "AWS::FSx::FileSystem", "AWS::EC2::NatGateway")
DONE = {"CREATE_COMPLETE": "made", "UPDATE_COMPLETE": "changed", "DELETE_COMPLETE": "removed"}
CANCELLED = re.compile(r"^Resource (creation|update) cancelled")


@dataclass(frozen=True)
class Follower:
    """Where progress goes: `tell` gets lasting lines, `live` the line that is drawn anew on a terminal."""

    tell: Progress
    live: Progress
    poll_seconds: float = POLL_SECONDS

    def pause(self, since: timedelta) -> float:
        """Seconds until the next look."""
        return min(self.poll_seconds, max(1.0, since.total_seconds() / 10))


def follow(name: str, region: str, follower: Follower, *, static_nodes: int = 0) -> StackState | None:
    """Until the stack moves no more or its creation has failed; returns how it ended, None if it is gone.

    What the operation that is under way has done so far is told first.
    """
    state = stack_state(name, region)
    if state is None:
        return None
    arn = state.arn  # a stack that is deleted is found by that only
    start = _begin(state, stack_events(arn, region))
    told: set[str] = set()
    phase = ""
    while state:
        events = [event for event in stack_events(arn, region) if event.time >= start]
        for line in news([event for event in events if event.event_id not in told], start):
            follower.tell(line)
        told.update(event.event_id for event in events)
        now = _phase(state, events, name, region, static_nodes)
        if now != phase:
            at = events[-1].time if events else start
            follower.tell(f"{elapsed(at - start)} {now}")
            phase = now
        if state.status == "DELETE_COMPLETE":
            return None
        if not state.moving or state.creation_failed:
            return state
        since = datetime.now(start.tzinfo) - start
        follower.live(f"{elapsed(since)} {now}")
        time.sleep(follower.pause(since))
        state = _patiently(arn, region, follower.poll_seconds)
    return None


def news(events: Sequence[StackEvent], start: datetime) -> list[str]:
    """Landmarks and failures a line each, whatever else was done since the last look in one."""
    told: list[tuple[datetime, str]] = []
    others: dict[str, list[StackEvent]] = {}
    for event in events:
        over = not event.status.endswith("_IN_PROGRESS")
        if event.status.endswith("FAILED") or (over and event.resource_type in LANDMARKS):
            told.append((event.time, _line(event, start)))
        elif event.status in DONE:
            others.setdefault(event.status, []).append(event)
    for status, done in others.items():
        last = done[-1]
        count = f"{len(done)} resources" if len(done) > 1 else "1 resource"
        line = f"{elapsed(last.time - start)} {count} {DONE[status]}, last {last.resource}"
        told.append((last.time, line))
    return [line for _, line in sorted(told)]


def _begin(state: StackState, events: Sequence[StackEvent]) -> datetime:
    """When the last creation, update or deletion of the stack began."""
    first = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
    begins = [each.time for each in events if each.physical_id == state.arn and each.status in first]
    return max(begins, default=state.created)


def failed_resources(events: Iterable[StackEvent]) -> tuple[StackEvent, ...]:
    """Events of what failed by itself, oldest first: not what was only stopped along with it."""
    return tuple(
        event
        for event in events
        if event.status.endswith("_FAILED")
        and event.resource_type != STACK
        and not CANCELLED.search(event.reason)
    )


def creation_phase(
    events: Sequence[StackEvent], instances: Sequence[ClusterInstance], static_nodes: int
) -> str:
    """What a creation is at, from what has happened so far."""
    head = _latest(events, INSTANCE)
    bootstrap = _latest(events, WAIT)
    if head is None:
        return "making network interfaces, roles and storage"
    if head != "CREATE_COMPLETE":
        return "starting the head node"
    if bootstrap == "CREATE_COMPLETE":
        return "finishing"
    nodes = [each for each in instances if each.role != "HeadNode" and each.state in ("pending", "running")]
    if not nodes:
        return "the head node sets itself up"
    of = f" of {static_nodes}" if static_nodes else ""
    return f"static nodes start: {len(nodes)}{of} instances are there"


def _phase(state: StackState, events: Sequence[StackEvent], name: str, region: str, static_nodes: int) -> str:
    if state.status != "CREATE_IN_PROGRESS":
        return state.status.lower().replace("_", " ")
    head_is_up = _latest(events, INSTANCE) == "CREATE_COMPLETE"
    return creation_phase(events, cluster_instances(name, region) if head_is_up else (), static_nodes)


def _patiently(arn: str, region: str, poll_seconds: float) -> StackState | None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return stack_state(arn, region)
        except ToolkitError:
            if time.monotonic() > deadline:
                raise
            time.sleep(poll_seconds)


def _latest(events: Sequence[StackEvent], kind: str) -> str | None:
    return next((event.status for event in reversed(events) if event.resource_type == kind), None)


def _line(event: StackEvent, start: datetime) -> str:
    reason = f": {event.reason}" if event.reason and event.status.endswith("FAILED") else ""
    return f"{elapsed(event.time - start)} {event.status} {event.resource} ({event.resource_type}){reason}"


def elapsed(span: timedelta) -> str:
    seconds = max(0, int(span.total_seconds()))
    return f"[{seconds // 60:02}:{seconds % 60:02}]"
