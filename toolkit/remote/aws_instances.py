"""The EC2 instances of a cluster, found by the tags that ParallelCluster gives them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from toolkit.remote.aws_session import AwsAnswer, aws_errors, client

CLUSTER_TAG = "parallelcluster:cluster-name"
ROLE_TAG = "parallelcluster:node-type"
QUEUE_TAG = "parallelcluster:queue-name"
# Every state but terminated: one that is shutting down is still there.
THERE = ("pending", "running", "shutting-down", "stopping", "stopped")


@dataclass(frozen=True)
class ClusterInstance:
    """`role` is HeadNode, Compute or LoginNode; `queue`, `public_ip`, `reservation` are empty where none."""

    id: str
    type: str
    state: str
    role: str
    queue: str
    private_ip: str
    public_ip: str
    reservation: str
    zone: str
    launched: datetime


def cluster_instances(cluster: str, region: str) -> tuple[ClusterInstance, ...]:
    """Every instance of the cluster that is not terminated: the head node first, then by queue."""
    filters = [
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]},
        {"Name": "instance-state-name", "Values": list(THERE)},
    ]
    with aws_errors(f"reading the instances of cluster {cluster}"):
        pages = client("ec2", region).get_paginator("describe_instances").paginate(Filters=filters)
        found = [
            _instance(each) for page in pages for group in page["Reservations"] for each in group["Instances"]
        ]
    return tuple(
        sorted(found, key=lambda each: (each.role != "HeadNode", each.queue, each.launched, each.id))
    )


def console_output(instance_id: str, region: str) -> str:
    """What the instance has written on its console: as kept since its start, then as of now.

    The first holds the host keys' fingerprints of an instance that has run for long, the second those of one
    that has just started. EC2 gives the second for Nitro instances only; without it the first must do.
    """
    kept = _console(instance_id, region, latest=False)
    try:
        return f"{kept}\n{_console(instance_id, region, latest=True)}"
    except AwsAnswer as answer:
        if answer.code != "UnsupportedOperation":
            raise
        return kept


def _console(instance_id: str, region: str, *, latest: bool) -> str:
    with aws_errors(f"reading the console of {instance_id}"):
        ec2 = client("ec2", region)
        return str(ec2.get_console_output(InstanceId=instance_id, Latest=latest).get("Output") or "")


def _instance(document: dict[str, Any]) -> ClusterInstance:
    tags = {tag["Key"]: tag["Value"] for tag in document.get("Tags", ())}
    return ClusterInstance(
        id=document["InstanceId"],
        type=document["InstanceType"],
        state=document["State"]["Name"],
        role=tags.get(ROLE_TAG, ""),
        queue=tags.get(QUEUE_TAG, ""),
        private_ip=document.get("PrivateIpAddress", ""),
        public_ip=document.get("PublicIpAddress", ""),
        reservation=document.get("CapacityReservationId", ""),
        zone=document.get("Placement", {}).get("AvailabilityZone", ""),
        launched=document["LaunchTime"],
    )
