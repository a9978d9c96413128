"""Why a cluster was not made or not changed: the stack's events and the nodes' logs, classified."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.errors import ToolkitError
from toolkit.flows.cluster_progress import failed_resources
from toolkit.flows.cluster_remains import read_remains, remains_lines, remains_step
from toolkit.flows.provision import Cloud
from toolkit.remote.aws_stack import StackState, stack_events
from toolkit.remote.pcluster import Pcluster
from toolkit.remote.pcluster_answer import Cluster, StackEvent
from toolkit.remote.pcluster_failure import Failure, classify, relevant_streams


def read_failure(cloud: Cloud, state: StackState) -> Failure:
    """The failed creation of the cluster's stack, classified; parts that can't be read count as empty."""
    events = stack_events(state.arn, cloud.region)
    pcluster = cloud.pcluster_for(state.version)
    return classify(_describe(cloud, pcluster), events, _logs(cloud, pcluster))


def creation_failed(cloud: Cloud, state: StackState) -> ToolkitError:
    """The error of a failed creation: cause, the lines that prove it, what stays billed, what to do."""
    failure = read_failure(cloud, state)
    remains = read_remains(cloud, state)
    evidence = "".join(f"\n  | {line}" for line in failure.evidence)
    stays = "".join(f"\n  {line}" for line in remains_lines(state.status, remains))
    return ToolkitError(
        f"cluster {cloud.name} was not created: {failure.cause} ({failure.kind}){evidence}{stays}",
        next_step=f"{failure.next_step}; {remains_step(state.status, remains, cloud.loaded.arguments)}",
    )


def update_failed(cloud: Cloud, state: StackState, events: Sequence[StackEvent]) -> ToolkitError:
    """The error of an update that CloudFormation took back, or could not take back."""
    failed = failed_resources(events)
    evidence = "".join(f"\n  | {each.resource} ({each.resource_type}): {each.reason}" for each in failed[-5:])
    taken_back = state.status == "UPDATE_ROLLBACK_COMPLETE"
    return ToolkitError(
        f"the update of cluster {cloud.name} failed ({state.status}): {state.reason}{evidence}",
        next_step="the cluster is as it was before; correct what is named and update again"
        if taken_back
        else "look at the stack in CloudFormation's console; `toolkit cluster describe` shows what runs",
    )


def deletion_failed(cloud: Cloud, state: StackState) -> ToolkitError:
    """The error of a stack that could not be deleted, with the resource that stays and why."""
    failed = [
        each
        for each in failed_resources(stack_events(state.arn, cloud.region))
        if each.status == "DELETE_FAILED"
    ]
    evidence = "".join(f"\n  | {each.resource} {each.physical_id}: {each.reason}" for each in failed[-5:])
    return ToolkitError(
        f"cluster {cloud.name} could not be deleted ({state.status}): {state.reason}{evidence}",
        next_step="remove what holds the named resource, then delete again; it goes on where it stopped",
    )


def _describe(cloud: Cloud, pcluster: Pcluster) -> Cluster | None:
    """None where it can't be read: a failure is told from what can."""
    try:
        return pcluster.describe_cluster(cloud.name)
    except ToolkitError as error:
        cloud.tell(f"not read: {error.what}")
        return None


def _logs(cloud: Cloud, pcluster: Pcluster) -> dict[str, list[str]]:
    """Lines of the telling log streams, by stream; those that can be read."""
    logs: dict[str, list[str]] = {}
    try:
        for stream in relevant_streams(pcluster.list_cluster_log_streams(cloud.name)):
            events = pcluster.get_cluster_log_events(cloud.name, stream)
            logs[stream] = [event.message for event in events]
    except ToolkitError as error:
        cloud.tell(f"not read: {error.what}")
    return logs
