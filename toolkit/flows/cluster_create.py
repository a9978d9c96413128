"""Making a cluster: what stands in the way, the network, the bucket, our script, and pcluster's creation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import yaml

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.cluster_failure import creation_failed
from toolkit.flows.cluster_progress import Follower, follow
from toolkit.flows.cluster_stored import stored_config
from toolkit.flows.provision import Cloud, Proposal, propose, refusal, render_with_aws, with_dry_run
from toolkit.plan.cluster import ClusterPlan
from toolkit.plan.network import plan_network
from toolkit.remote.aws_bucket import ensure_bucket, upload, usable_bucket
from toolkit.remote.aws_network import describe_network, ensure_network
from toolkit.remote.aws_stack import StackState, stack_state
from toolkit.remote.pcluster_error import PclusterRefused

Standing = Literal["absent", "up", "creating"]


def standing(cloud: Cloud) -> Standing:
    """Whether there is something to create. An error says what to do about a cluster that failed, is being
    deleted or updated, or is of another configuration, up or on its way, and about a stack that is no
    cluster."""
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
        _same_or_raise(cloud, state)
        return "creating"
    if state.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"):
        _same_or_raise(cloud, state)
        return "up"
    raise _in_the_way(cloud, state)


def make(cloud: Cloud, proposal: Proposal, follower: Follower, *, rollback: bool) -> None:
    """Network, bucket and script, then the cluster's creation, which goes on by itself after this returns.

    Each step that is done already is left as it is, so that an interrupted one is taken up again. An error
    names what was made before it and stays.
    """
    made = Made()
    try:
        if cloud.target.bucket:
            usable_bucket(cloud.target.bucket, cloud.region)
        if proposal.zone:
            network = plan_network(cloud.target, proposal.zone)
            made.network = network.stack
            ensure_network(network, cloud.tell, poll=follower.poll_seconds)
            proposal = with_dry_run(cloud, propose(cloud, untouched=False))
        send_scripts(cloud, proposal.plan, made.buckets)
        cloud.tell(f"pcluster {cloud.version}: making the templates of cluster {cloud.name} (about 10 s)")
        try:
            cloud.pcluster.create_cluster(cloud.name, proposal.config, rollback_on_failure=rollback)
        except PclusterRefused as refused:
            raise refusal(proposal.plan, refused) from refused
    except ToolkitError as error:
        raise made.told_with(error, cloud) from error


@dataclass
class Made:
    """What this run has made for a cluster before the cluster itself."""

    network: str = ""
    buckets: list[str] = field(default_factory=list)

    def told_with(self, error: ToolkitError, cloud: Cloud) -> ToolkitError:
        """`error` with what stays, how it is billed, and what removes it; itself if nothing was made."""
        stays, steps = [], []
        if self.network and _is_there(cloud):
            stays.append(f"network stack {self.network} with its NAT gateway, billed by the hour and by GB")
            steps.append(
                f"`toolkit cluster delete {cloud.loaded.arguments} --delete-network` removes the network"
            )
        for bucket in self.buckets:
            stays.append(f"bucket {bucket}, billed by GB")
            steps.append(f"`aws s3 rb --force s3://{bucket}` removes the bucket")
        if not stays:
            return error
        kind = SettingsError if isinstance(error, SettingsError) else ToolkitError
        lines = "".join(f"\n  {line}" for line in stays)
        return kind(
            f"{error.what}\nmade before that, and stays for the next try:{lines}",
            next_step="; ".join(filter(None, (error.next_step, *steps))),
        )


def _is_there(cloud: Cloud) -> bool:
    """A network that CloudFormation could not make is taken back by it; unknown counts as there."""
    try:
        return describe_network(cloud.name, cloud.region) is not None
    except ToolkitError:
        return True


def send_scripts(cloud: Cloud, plan: ClusterPlan, made: list[str] | None = None) -> None:
    """Our own scripts of the plan, to the bucket that the nodes read them from; `made` gets the buckets that
    had to be made, also where an error follows."""
    made = [] if made is None else made
    ours = [script for script in plan.scripts if script.content is not None]
    for bucket in _buckets(plan):
        done = ensure_bucket(bucket, cloud.region, cloud.target.tags)
        if done:
            cloud.tell(f"bucket {bucket} was {done}")
        if done == "made":
            made.append(bucket)
        files = {each.key: (each.content or "").encode() for each in ours if each.bucket == bucket}
        for key in upload(bucket, cloud.region, files):
            cloud.tell(f"sent s3://{bucket}/{key}")


def _buckets(plan: ClusterPlan) -> list[str]:
    """Those of our own scripts."""
    return sorted({script.bucket for script in plan.scripts if script.content is not None})


def follow_creation(cloud: Cloud, follower: Follower) -> StackState:
    """Until the cluster is up; ToolkitError with the classified cause if its creation fails."""
    state = follow(cloud.name, cloud.region, follower, static_nodes=cloud.static_nodes)
    if state is None:
        raise ToolkitError(
            f"cluster {cloud.name} is gone: somebody deleted it.",
            next_step="`toolkit cluster create -f FILE` makes it anew",
        )
    if state.creation_failed:
        raise creation_failed(cloud, state)
    return state


def _same_or_raise(cloud: Cloud, state: StackState) -> None:
    stored = stored_config(cloud, state)
    wanted = render_with_aws(cloud, stored).config
    if state.version == cloud.version and yaml.safe_load(stored) == yaml.safe_load(wanted):
        return
    same = cloud.loaded.arguments
    if state.moving:
        raise SettingsError(
            f"cluster {cloud.name} is being created in {cloud.region}, but not from these settings.",
            next_step=f"`toolkit cluster describe {same} --wait` follows it, then `toolkit cluster diff "
            f"{same}` shows what differs; `toolkit cluster delete {same}` takes it down; another "
            "target.cluster_name makes a second one",
        )
    raise SettingsError(
        f"cluster {cloud.name} is up in {cloud.region}, and these settings would give another one.",
        next_step=f"`toolkit cluster diff {same}` shows what differs, `toolkit cluster update {same}` "
        "changes it; another target.cluster_name makes a second one",
    )


def _in_the_way(cloud: Cloud, state: StackState) -> ToolkitError:
    same = cloud.loaded.arguments
    if state.creation_failed:
        return ToolkitError(
            f"cluster {cloud.name} is there, but its creation failed ({state.status}).",
            next_step=f"`toolkit cluster describe {same}` tells why; `toolkit cluster delete {same}` "
            "removes it, then create it again",
        )
    if state.status == "DELETE_FAILED":
        return ToolkitError(
            f"the deletion of cluster {cloud.name} failed (DELETE_FAILED), and parts of it are left. "
            f"{state.reason}".rstrip(),
            next_step=f"remove what its reason names, then `toolkit cluster delete {same}` goes on; then "
            "create it again",
        )
    if state.status.startswith("DELETE_"):
        return ToolkitError(
            f"cluster {cloud.name} is being deleted ({state.status}).",
            next_step=f"`toolkit cluster delete {same}` follows that until it is gone; then create it again",
        )
    if not state.moving:
        return ToolkitError(
            f"cluster {cloud.name} is there, and is {state.status}. {state.reason}".rstrip(),
            next_step=f"`toolkit cluster describe {same}` shows what runs; CloudFormation's console can "
            "continue an update's rollback",
        )
    return ToolkitError(
        f"cluster {cloud.name} is there, and is {state.status}.",
        next_step=f"`toolkit cluster describe {same} --wait` follows it",
    )
