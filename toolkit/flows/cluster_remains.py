"""What a creation that failed has left in the account, and is billed: told with the commands that end it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.flows.provision import Cloud
from toolkit.remote import aws_leftovers
from toolkit.remote.aws_instances import ClusterInstance, cluster_instances
from toolkit.remote.aws_leftovers import Leftover
from toolkit.remote.aws_stack import StackResource, StackState, stack_resources


@dataclass(frozen=True)
class Remains:
    """`kept`: what outlives the stack. `stuck`: what CloudFormation could not take down. `unread`: why parts
    of this are unknown, empty where all is told."""

    instances: tuple[ClusterInstance, ...] = ()
    kept: tuple[Leftover, ...] = ()
    stuck: tuple[StackResource, ...] = ()
    unread: str = ""


def read_remains(cloud: Cloud, state: StackState) -> Remains:
    """Never raises: the failure itself matters more than a part that can't be read."""
    try:
        resources = stack_resources(state.arn, cloud.region)
        instances = cluster_instances(cloud.name, cloud.region)
    except ToolkitError as error:
        return Remains(unread=error.what)
    kept = (
        *aws_leftovers.file_systems(cloud.name, cloud.region, resources),
        *aws_leftovers.security_groups(cloud.name, cloud.region, resources),
    )
    stuck = tuple(each for each in resources if each.status == "DELETE_FAILED")
    return Remains(instances, kept, stuck)


def remains_lines(status: str, remains: Remains) -> Iterator[str]:
    """One for each thing that stays, and that AWS bills or that stands in the way of the next creation."""
    taken_down = status in ("ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE")
    if remains.instances and not taken_down:
        yield f"running, and billed: {count_instances(remains.instances)}"
    for resource in remains.stuck:
        yield f"not taken down: {resource.logical_id} ({resource.physical_id}): {resource.reason}"
    for each in remains.kept:
        yield f"stays: {each.kind} {each.id}; {each.removal}"
    if remains.unread:
        yield f"what else stays could not be read: {remains.unread}"


def remains_step(status: str, remains: Remains, same: str) -> str:
    """What to do about it, after a creation that ended as `status`."""
    delete = f"`toolkit cluster delete {same}`"
    rest = "; what is named as staying goes by its own command" if remains.kept else ""
    if status == "CREATE_FAILED":
        return f"`toolkit cluster ssh {same}` looks at the head node; {delete} ends what runs{rest}"
    if status == "ROLLBACK_FAILED":
        return (
            f"AWS could not take it all down (ROLLBACK_FAILED), so resources remain: remove what holds them, "
            f"then {delete} goes on{rest}"
        )
    going = "AWS is taking down" if status.endswith("_IN_PROGRESS") else "AWS has taken down"
    return (
        f"{going} all but what is named as staying; {delete} clears the rest{rest}; "
        "`toolkit cluster create --no-rollback` leaves a failed head node running, to be looked at"
    )


def count_instances(instances: Iterable[ClusterInstance]) -> str:
    """Such as `1 c6i.2xlarge (head node), 2 p5en.48xlarge (gpu)`."""
    named = (
        (each.type, "head node" if each.role == "HeadNode" else each.queue or each.role) for each in instances
    )
    return ", ".join(f"{count} {kind} ({role})" for (kind, role), count in Counter(named).items())
