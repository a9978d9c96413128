"""Deleting a cluster: what goes and what stays, the deletion followed, and proof that no instance runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.cluster_failure import deletion_failed
from toolkit.flows.cluster_progress import Follower, follow
from toolkit.flows.cluster_stored import stored_config
from toolkit.flows.provision import Cloud
from toolkit.plan.cluster import ClusterPlan, plan_cluster
from toolkit.plan.cluster_identity import differences
from toolkit.plan.network import stack_name
from toolkit.remote import aws_leftovers
from toolkit.remote.aws_bucket import bucket_state
from toolkit.remote.aws_facts import AwsReader
from toolkit.remote.aws_instances import ClusterInstance, cluster_instances
from toolkit.remote.aws_leftovers import Leftover
from toolkit.remote.aws_network import (
    delete_group,
    delete_network,
    describe_network,
    network_users,
    network_vpc,
)
from toolkit.remote.aws_stack import StackResource, StackState, stack_resources, stack_state

# Instances that are shutting down are gone within minutes; the p5en's are the slowest.
INSTANCE_SECONDS = 900.0


@dataclass(frozen=True)
class Deletion:
    """What a deletion is about. `state`: None if there is no stack (any more). `foreign`: what shows that the
    cluster was not made from this target."""

    state: StackState | None
    resources: tuple[StackResource, ...]
    instances: tuple[ClusterInstance, ...]
    stays: tuple[Leftover, ...]
    foreign: tuple[str, ...] = ()

    @property
    def cluster_is_there(self) -> bool:
        return bool(self.state or self.instances)


@dataclass(frozen=True)
class NetworkDeletion:
    """`held`: what will be in the network when the cluster is gone, so that it stays. `groups`: security
    groups of the deleted cluster that go along with it."""

    stack: str
    held: tuple[str, ...]
    groups: tuple[str, ...]


def look(cloud: Cloud) -> Deletion:
    """What there is of the cluster, and what would stay. ToolkitError for a stack that is no cluster."""
    state = stack_state(cloud.name, cloud.region)
    if state and not state.version:
        raise ToolkitError(
            f"stack {cloud.name} in {cloud.region} is no ParallelCluster; it is left alone.",
            next_step="correct target.cluster_name",
        )
    resources = stack_resources(state.arn, cloud.region) if state else ()
    instances = cluster_instances(cloud.name, cloud.region)
    foreign = _foreign(cloud, state) if state else ()
    return Deletion(state, resources, instances, leftovers(cloud, resources), foreign)


def refuse_foreign(cloud: Cloud, deletion: Deletion) -> None:
    """SettingsError for a cluster that was made from another target than this file's."""
    state = deletion.state
    if not state or not deletion.foreign:
        return
    lines = "".join(f"\n  {line}" for line in deletion.foreign)
    tags = ", ".join(f"{key}={value}" for key, value in sorted(state.tags.items()))
    raise SettingsError(
        f"cluster {cloud.name} in {cloud.region} does not look like one of {cloud.loaded.file}, so it is "
        f"left alone:{lines}\n  made {state.created:%Y-%m-%d %H:%M} UTC; its tags: {tags or 'none'}",
        next_step="name the file that it was made from, or another target.cluster_name; "
        "--not-mine deletes it all the same",
    )


def look_at_network(cloud: Cloud, deletion: Deletion) -> NetworkDeletion | None:
    """Whether the network that the toolkit made can go with the cluster; None if there is none."""
    vpc = network_vpc(cloud.name, cloud.region)
    if describe_network(cloud.name, cloud.region) is None:
        return None
    inside = [each for each in deletion.stays if each.vpc and each.vpc == vpc]
    groups = [each.id for each in inside if each.kind == "security group"]
    going = {each.physical_id for each in deletion.resources if not each.retained}
    going |= {each.id for each in deletion.instances} | set(groups)
    held = [f"file system {each.id}" for each in inside if each.kind == "file system"]
    # A file system's interfaces are told by itself, where it can be read.
    held += [
        str(user)
        for user in (network_users(vpc, cloud.region) if vpc else ())
        if user.id not in going and not (held and user.kind == "interface")
    ]
    return NetworkDeletion(stack_name(cloud.name), tuple(held), tuple(groups))


def refuse_held(network: NetworkDeletion) -> None:
    """ToolkitError for a network that can't go although its cluster is gone."""
    if network.held:
        raise ToolkitError(
            f"network {network.stack} can't be deleted, since this is in it: {', '.join(network.held)}. It "
            "and its NAT gateway stay, and are billed.",
            next_step="remove that by the commands above, wait until it is gone, then run this command again",
        )


def delete(cloud: Cloud, deletion: Deletion, follower: Follower) -> None:
    """Until stack and instances are gone; ToolkitError with the resource that could not be deleted."""
    state = deletion.state
    if state and state.status != "DELETE_IN_PROGRESS":
        cloud.pcluster_for(state.version).delete_cluster(cloud.name)
    if state:
        left = follow(state.arn, cloud.region, follower)
        if left is not None:
            raise deletion_failed(cloud, left)
    _until_no_instance(cloud, follower)


def delete_own_network(cloud: Cloud, network: NetworkDeletion, follower: Follower) -> None:
    """The network that the toolkit made for the cluster, with the cluster's last security groups in it."""
    for group in network.groups:
        delete_group(group, cloud.region)
        cloud.tell(f"security group {group} was deleted")
    delete_network(cloud.name, cloud.region, cloud.tell, poll=follower.poll_seconds)


def leftovers(cloud: Cloud, resources: Sequence[StackResource] = ()) -> tuple[Leftover, ...]:
    """What of the cluster stays, or has stayed, in the account, each with how it is removed."""
    name, region = cloud.name, cloud.region
    reservation = cloud.target.capacity.reservation
    return (
        *aws_leftovers.file_systems(name, region, resources),
        *aws_leftovers.security_groups(name, region, resources),
        *aws_leftovers.log_groups(name, region),
        *_image(cloud),
        *aws_leftovers.image_roles(region),
        *_bucket(cloud),
        *_network(cloud),
        *(aws_leftovers.reservation(reservation, region) if reservation else ()),
    )


def _foreign(cloud: Cloud, state: StackState) -> tuple[str, ...]:
    """A deletion that is under way, or got stuck, is no question any more."""
    if state.status.startswith("DELETE_"):
        return ()
    try:
        stored = yaml.safe_load(stored_config(cloud, state))
        network = describe_network(cloud.name, cloud.region) if cloud.target.network.create else None
    except ToolkitError as error:
        return (f"its configuration can't be compared with these settings: {error.what}",)
    ids = network.ids if network else None
    return differences(cloud.target, stored, (ids.head_subnet, ids.compute_subnet) if ids else None)


def _until_no_instance(cloud: Cloud, follower: Follower) -> None:
    deadline = time.monotonic() + INSTANCE_SECONDS
    while running := cluster_instances(cloud.name, cloud.region):
        told = ", ".join(f"{each.id} ({each.type}, {each.state})" for each in running)
        if time.monotonic() > deadline:
            ids = " ".join(each.id for each in running)
            raise ToolkitError(
                f"the stack of cluster {cloud.name} is gone, but instances of it are still there: {told}",
                next_step=f"aws ec2 terminate-instances --region {cloud.region} --instance-ids {ids}",
            )
        follower.live(f"waiting for instances to end: {told}")
        time.sleep(follower.poll_seconds)
    cloud.tell(f"no instance of cluster {cloud.name} is left in {cloud.region}")


def _plan(cloud: Cloud) -> ClusterPlan | None:
    """None where the settings would not make a cluster; deleting one needs its name only."""
    try:
        return plan_cluster(cloud.target)
    except ToolkitError:
        return None


def _image(cloud: Cloud) -> tuple[Leftover, ...]:
    plan = _plan(cloud)
    if plan is None or not plan.image:
        return ()
    try:
        found = AwsReader(cloud.region).image(plan.image, plan.version)
    except ToolkitError as error:
        return (Leftover("image", plan.image, f"could not be read: {error.what}"),)
    removal = f"toolkit image delete {cloud.loaded.arguments}"
    return (Leftover("image", f"{plan.image} ({found.id})", removal),) if found else ()


def _bucket(cloud: Cloud) -> tuple[Leftover, ...]:
    bucket = cloud.target.bucket
    if bucket is None:
        return ()
    try:
        there = bucket_state(bucket, cloud.region) == "ours"
        return (aws_leftovers.bucket(bucket, cloud.name, cloud.region),) if there else ()
    except ToolkitError as error:
        return (Leftover("bucket", bucket, f"could not be read: {error.what}"),)


def _network(cloud: Cloud) -> tuple[Leftover, ...]:
    try:
        network = describe_network(cloud.name, cloud.region)
    except ToolkitError as error:
        return (Leftover("network", cloud.name, f"could not be read: {error.what}"),)
    removal = f"toolkit cluster delete {cloud.loaded.arguments} --delete-network; its NAT gateway is billed"
    return (Leftover("network stack", network.stack, removal),) if network else ()
