"""Making a cluster: what stands in the way, the network, the bucket, our script, and pcluster's creation."""

from __future__ import annotations

from typing import Literal

import yaml

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.cluster_failure import creation_failed
from toolkit.flows.cluster_progress import Follower, follow
from toolkit.flows.cluster_stored import stored_config
from toolkit.flows.provision import Cloud, Proposal, propose, refusal, render_with_aws, with_dry_run
from toolkit.plan.cluster import ClusterPlan
from toolkit.plan.network import plan_network
from toolkit.remote.aws_bucket import ensure_bucket, upload
from toolkit.remote.aws_network import ensure_network
from toolkit.remote.aws_stack import StackState, stack_state
from toolkit.remote.pcluster_error import PclusterRefused

Standing = Literal["absent", "up", "creating"]


def standing(cloud: Cloud) -> Standing:
    """Whether there is something to create. An error says what to do about a cluster that failed, is being
    deleted or updated, or is up with another configuration, and about a stack that is no cluster."""
    state = stack_state(cloud.name, cloud.region)
    if state is None or state.status == "DELETE_COMPLETE":
        return "absent"
    if not state.version:
        raise SettingsError(
            f"target.cluster_name: {cloud.region} has a CloudFormation stack {cloud.name} that is no "
            "ParallelCluster.",
            next_step="choose another target.cluster_name",
        )
    if state.status == "CREATE_IN_PROGRESS":
        return "creating"
    if state.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"):
        _same_or_raise(cloud, state)
        return "up"
    raise _in_the_way(cloud, state)


def make(cloud: Cloud, proposal: Proposal, follower: Follower, *, rollback: bool) -> None:
    """Network, bucket and script, then the cluster's creation, which goes on by itself after this returns.

    Each step that is done already is left as it is, so that an interrupted one is taken up again.
    """
    if proposal.zone:
        network = plan_network(cloud.target, proposal.zone)
        ensure_network(network, cloud.tell, poll=follower.poll_seconds)
        proposal = with_dry_run(cloud, propose(cloud))
    send_scripts(cloud, proposal.plan)
    cloud.tell(f"pcluster {cloud.version}: making the templates of cluster {cloud.name} (about 10 s)")
    try:
        cloud.pcluster.create_cluster(cloud.name, proposal.config, rollback_on_failure=rollback)
    except PclusterRefused as refused:
        raise refusal(proposal.plan, refused) from refused


def send_scripts(cloud: Cloud, plan: ClusterPlan) -> None:
    """Our own scripts of the plan, to the bucket that the nodes read them from."""
    ours = [script for script in plan.scripts if script.content is not None]
    for bucket in sorted({script.bucket for script in ours}):
        if ensure_bucket(bucket, cloud.region, cloud.target.tags):
            cloud.tell(f"bucket {bucket} was made")
        files = {each.key: (each.content or "").encode() for each in ours if each.bucket == bucket}
        for key in upload(bucket, cloud.region, files):
            cloud.tell(f"sent s3://{bucket}/{key}")


def follow_creation(cloud: Cloud, follower: Follower, *, rollback: bool | None = None) -> StackState:
    """Until the cluster is up; ToolkitError with the classified cause if its creation fails."""
    state = follow(cloud.name, cloud.region, follower, static_nodes=cloud.static_nodes)
    if state is None:
        raise ToolkitError(
            f"cluster {cloud.name} is gone: somebody deleted it.",
            next_step="`toolkit cluster create -f FILE` makes it anew",
        )
    if state.creation_failed:
        raise creation_failed(cloud, state, rollback=rollback)
    return state


def _same_or_raise(cloud: Cloud, state: StackState) -> None:
    stored = stored_config(cloud, state)
    wanted = render_with_aws(cloud, stored).config
    if state.version == cloud.version and yaml.safe_load(stored) == yaml.safe_load(wanted):
        return
    raise SettingsError(
        f"cluster {cloud.name} is up in {cloud.region}, and these settings would give another one.",
        next_step="`toolkit cluster diff -f FILE` shows what differs, `toolkit cluster update -f FILE` "
        "changes it; another target.cluster_name makes a second one",
    )


def _in_the_way(cloud: Cloud, state: StackState) -> ToolkitError:
    if state.creation_failed:
        return ToolkitError(
            f"cluster {cloud.name} is there, but its creation failed ({state.status}).",
            next_step="`toolkit cluster describe -f FILE` tells why; `toolkit cluster delete -f FILE` "
            "removes it, then create it again",
        )
    if state.status.startswith("DELETE_"):
        return ToolkitError(
            f"cluster {cloud.name} is being deleted ({state.status}).",
            next_step="`toolkit cluster delete -f FILE` follows that until it is gone; then create it again",
        )
    return ToolkitError(
        f"cluster {cloud.name} is there, and is {state.status}.",
        next_step="`toolkit cluster describe -f FILE --wait` follows it",
    )
