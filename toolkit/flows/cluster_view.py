"""A cluster on AWS as it is now, put together from pcluster, CloudFormation and EC2.

Each part is read by itself: one that can't be read is named in `unread` and shown as unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from toolkit.errors import ToolkitError
from toolkit.flows.cluster_failure import read_failure
from toolkit.flows.cluster_progress import Follower, follow
from toolkit.flows.provision import Cloud
from toolkit.plan.node_software import node_software
from toolkit.remote.aws_instances import ClusterInstance, cluster_instances
from toolkit.remote.aws_network import Network, describe_network
from toolkit.remote.aws_reservation import ReservationState, reservation_state
from toolkit.remote.aws_stack import StackState, stack_state
from toolkit.remote.pcluster import Pcluster
from toolkit.remote.pcluster_answer import Cluster, ClusterSummary
from toolkit.remote.pcluster_env import ensure_pcluster
from toolkit.remote.pcluster_failure import Failure

T = TypeVar("T")
Progress = Callable[[str], None]

ABSENT, UNKNOWN = "absent", "unknown"


@dataclass(frozen=True)
class ClusterView:
    """`state` is CloudFormation's word, `absent` or `unknown`; so is `fleet`, ParallelCluster's. `address` is
    the head node's, empty without one. `network`: the one that the toolkit made for it. `failure`: of a
    creation that failed. `unread`: one line a part."""

    name: str
    region: str
    version: str
    state: str
    fleet: str
    address: str
    login: str
    instances: tuple[ClusterInstance, ...] | None
    reservation: ReservationState | None
    network: Network | None
    failure: Failure | None
    unread: tuple[str, ...]


class _Reading:
    """Reads part by part, and keeps what could not be read."""

    def __init__(self) -> None:
        self.unread: list[str] = []

    def __call__(self, what: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except ToolkitError as error:
            self.unread.append(f"{what}: {error.what}")
            return None


def describe(cloud: Cloud) -> ClusterView:
    """Never raises because a part can't be read."""
    name, region, identity = cloud.name, cloud.region, cloud.target.capacity.reservation
    read = _Reading()
    state = read("stack", lambda: stack_state(name, region))
    missed = bool(read.unread)
    there = state is not None or missed
    version = state.version if state else ""
    cluster = read("cluster", lambda: cloud.pcluster_for(version).describe_cluster(name)) if there else None
    instances = read("instances", lambda: cluster_instances(name, region))
    reserved = identity and read("capacity reservation", lambda: reservation_state(identity or "", region))
    # Also where these settings don't ask for it: it is billed, whoever left it.
    network = read("network", lambda: describe_network(name, region))
    failed = state if state and state.creation_failed else None
    failure = read("failure", lambda: read_failure(cloud, failed)) if failed else None
    return ClusterView(
        name=name,
        region=region,
        version=version,
        state=_word(state, cluster, missed),
        fleet=cluster.fleet_status if cluster else (UNKNOWN if there else ABSENT),
        address=_address(instances),
        login=f"toolkit cluster ssh {cloud.loaded.arguments}",
        instances=instances,
        reservation=reserved or None,
        network=network,
        failure=failure,
        unread=tuple(read.unread),
    )


def wait(cloud: Cloud, follower: Follower) -> StackState | None:
    """Follows whatever is under way, if anything, to its end."""
    return follow(cloud.name, cloud.region, follower, static_nodes=cloud.static_nodes)


def list_clusters(region: str, version: str | None, tell: Progress) -> tuple[ClusterSummary, ...]:
    """Every ParallelCluster of the region, whatever version made it; `version`: of the pcluster that asks."""
    env = ensure_pcluster(version or node_software().parallelcluster, tell)
    return Pcluster(env, region).list_clusters()


def _word(state: StackState | None, cluster: Cluster | None, missed: bool) -> str:
    if state:
        return state.status
    if cluster:
        return cluster.stack_status
    return UNKNOWN if missed else ABSENT


def _address(instances: tuple[ClusterInstance, ...] | None) -> str:
    heads = [each for each in instances or () if each.role == "HeadNode"]
    return next((each.public_ip or each.private_ip for each in heads), "")
