"""Starting and stopping a cluster's compute fleet: asked of pcluster, done by the cluster, followed here.

PROTECTED, in which a cluster starts no nodes after many have failed, is left by starting the fleet.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.cluster_progress import Follower
from toolkit.flows.cluster_stored import require_stack
from toolkit.flows.provision import Cloud
from toolkit.remote.aws_instances import ClusterInstance, cluster_instances
from toolkit.remote.pcluster import Pcluster

Action = Literal["start", "stop"]

REQUEST: dict[Action, str] = {"start": "START_REQUESTED", "stop": "STOP_REQUESTED"}
END: dict[Action, str] = {"start": "RUNNING", "stop": "STOPPED"}
ON_THE_WAY = {
    "start": ("START_REQUESTED", "STARTING", "RUNNING"),
    "stop": ("STOP_REQUESTED", "STOPPING", "STOPPED"),
}
# The cluster looks once a minute, and ends or starts its nodes within minutes.
FLEET_SECONDS = 1200.0


@dataclass(frozen=True)
class Fleet:
    """`status` is ParallelCluster's word; `nodes` are compute instances that are there now."""

    pcluster: Pcluster
    status: str
    nodes: tuple[ClusterInstance, ...]


def look(cloud: Cloud) -> Fleet:
    """SettingsError if there is no cluster, or if its stack is at something else."""
    state = require_stack(cloud)
    if state.moving or not state.usable:
        raise SettingsError(
            f"cluster {cloud.name} is {state.status}, and its fleet can't be started or stopped now.",
            next_step="`toolkit cluster describe -f FILE --wait` follows it, or tells why it failed",
        )
    pcluster = cloud.pcluster_for(state.version)
    nodes = [each for each in cluster_instances(cloud.name, cloud.region) if each.role == "Compute"]
    return Fleet(pcluster, _status(cloud, pcluster), tuple(nodes))


def request(cloud: Cloud, fleet: Fleet, action: Action) -> str:
    """Asks for it, and returns the fleet's status then."""
    answer = fleet.pcluster.update_compute_fleet(cloud.name, REQUEST[action])
    if answer is None:
        raise _gone(cloud)
    return answer.status


def follow(cloud: Cloud, fleet: Fleet, action: Action, follower: Follower) -> str:
    """Until the fleet is RUNNING or STOPPED; ToolkitError if it becomes something else, or takes too long."""
    deadline = time.monotonic() + FLEET_SECONDS
    told = ""
    while True:
        status = _status(cloud, fleet.pcluster)
        if status != told:
            follower.tell(f"the compute fleet of cluster {cloud.name} is {status}")
            told = status
        if status == END[action]:
            return status
        if status not in ON_THE_WAY[action]:
            raise ToolkitError(
                f"the compute fleet of cluster {cloud.name} should {action}, and is {status}.",
                next_step="`toolkit doctor cluster -f FILE` tells why its nodes fail"
                if status == "PROTECTED"
                else "somebody else may have changed it: `toolkit cluster describe -f FILE`",
            )
        if time.monotonic() > deadline:
            raise ToolkitError(
                f"the compute fleet of cluster {cloud.name} is still {status} after "
                f"{FLEET_SECONDS / 60:.0f} minutes.",
                next_step="it goes on by itself if the head node is up: `toolkit doctor cluster -f FILE`",
            )
        time.sleep(follower.poll_seconds)


def _status(cloud: Cloud, pcluster: Pcluster) -> str:
    answer = pcluster.describe_compute_fleet(cloud.name)
    if answer is None:
        raise _gone(cloud)
    return answer.status


def _gone(cloud: Cloud) -> ToolkitError:
    return ToolkitError(
        f"there is no cluster {cloud.name} in {cloud.region} any more.",
        next_step="`toolkit cluster list -f FILE` shows what is there",
    )
