"""Deleting a cluster: what goes and what stays, the deletion followed, and proof that no instance runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.flows.cluster_failure import deletion_failed
from toolkit.flows.cluster_progress import Follower, follow
from toolkit.flows.provision import Cloud
from toolkit.plan.cluster import ClusterPlan, plan_cluster
from toolkit.remote import aws_leftovers
from toolkit.remote.aws_bucket import bucket_state
from toolkit.remote.aws_facts import AwsReader
from toolkit.remote.aws_instances import ClusterInstance, cluster_instances
from toolkit.remote.aws_leftovers import Leftover
from toolkit.remote.aws_network import delete_network, describe_network
from toolkit.remote.aws_stack import StackResource, StackState, stack_resources, stack_state

# Instances that are shutting down are gone within minutes; the p5en's are the slowest.
INSTANCE_SECONDS = 900.0


@dataclass(frozen=True)
class Deletion:
    """What a deletion is about. `state`: None if there is no stack (any more)."""

    state: StackState | None
    resources: tuple[StackResource, ...]
    instances: tuple[ClusterInstance, ...]
    stays: tuple[Leftover, ...]


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
    return Deletion(state, resources, instances, leftovers(cloud, resources))


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


def delete_own_network(cloud: Cloud, follower: Follower) -> bool:
    """The network that the toolkit made for the cluster; False if there is none."""
    return delete_network(cloud.name, cloud.region, cloud.tell, poll=follower.poll_seconds)


def leftovers(cloud: Cloud, resources: Sequence[StackResource] = ()) -> tuple[Leftover, ...]:
    """What of the cluster stays, or has stayed, in the account, each with how it is removed."""
    name, region = cloud.name, cloud.region
    reservation = cloud.target.capacity.reservation
    return (
        *aws_leftovers.file_systems(name, region, resources),
        *aws_leftovers.log_groups(name, region),
        *_image(cloud),
        *aws_leftovers.image_roles(region),
        *_bucket(cloud),
        *_network(cloud),
        *(aws_leftovers.reservation(reservation, region) if reservation else ()),
    )


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
    removal = f"toolkit image delete -f {cloud.loaded.file}"
    return (Leftover("image", f"{plan.image} ({found.id})", removal),) if found else ()


def _bucket(cloud: Cloud) -> tuple[Leftover, ...]:
    bucket = cloud.target.bucket
    if bucket is None:
        return ()
    try:
        there = bucket_state(bucket, cloud.region) == "ours"
    except ToolkitError as error:
        return (Leftover("bucket", bucket, f"could not be read: {error.what}"),)
    return (Leftover("bucket", bucket, f"aws s3 rb --force s3://{bucket}"),) if there else ()


def _network(cloud: Cloud) -> tuple[Leftover, ...]:
    try:
        network = describe_network(cloud.name, cloud.region)
    except ToolkitError as error:
        return (Leftover("network", cloud.name, f"could not be read: {error.what}"),)
    removal = f"toolkit cluster delete -f {cloud.loaded.file} --delete-network; its NAT gateway is billed"
    return (Leftover("network stack", network.stack, removal),) if network else ()
