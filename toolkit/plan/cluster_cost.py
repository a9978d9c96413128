"""What a planned cluster will be billed for, and what of it outlives its deletion. Pure.

No price is named: prices differ by region, contract and date, and the toolkit does not ask for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.plan.cluster import ClusterPlan, Queue

NO_PRICES = "prices are not asked; see the AWS Pricing Calculator for your region and contract"


@dataclass(frozen=True)
class CostDriver:
    """`what` is there, and by what it is `billed`."""

    what: str
    billed: str


def cost_drivers(plan: ClusterPlan) -> tuple[CostDriver, ...]:
    """Everything of the plan that costs by time or size, dearest first."""
    return (
        *(_nodes(queue) for queue in plan.queues),
        CostDriver(
            f"head node: 1 x {plan.head.instance_type}", "by the second, until the cluster is deleted"
        ),
        _volume(plan),
        CostDriver(
            f"root volumes: {_root_gb(plan)} GB gp3 with every node up", "GB-months while nodes exist"
        ),
        *_network(plan),
        CostDriver(
            f"logs in CloudWatch, kept {plan.log_retention_days} days",
            "GB taken in, then GB-months of storage",
        ),
    )


def kept_after_delete(plan: ClusterPlan) -> tuple[str, ...]:
    """What `cluster delete` leaves, one line each."""
    volume = plan.volume
    lines = [
        f"file system {volume.file_system}, which was there before"
        if volume.file_system
        else f"the new FSx file system ({volume.capacity_gb} GB), with its data and its security group, also "
        "after a creation that failed; billed until you delete it",
        f"log group /aws/parallelcluster/{plan.name}-*, for {plan.log_retention_days} days' worth of lines",
    ]
    if plan.image or plan.ami:
        lines.append(f"image {plan.image or plan.ami}, with its snapshot")
    buckets = sorted({script.bucket for script in plan.scripts if script.content is not None})
    lines += [f"bucket {bucket}" for bucket in buckets]
    lines += [
        f"capacity reservation {queue.reservation}; billed, used or not, until it is cancelled or ends"
        for queue in plan.queues
        if queue.reservation
    ]
    if plan.makes_network:
        when = "" if volume.file_system else ", which works once the file system in it is gone"
        lines.append(f"the network stack with its NAT gateway, unless --delete-network is given{when}")
    return tuple(lines)


def node_count(queue: Queue) -> str:
    """Such as `2`, or `1 to 4`."""
    if queue.min_nodes == queue.max_nodes:
        return str(queue.max_nodes)
    return f"{queue.min_nodes} to {queue.max_nodes}"


def _nodes(queue: Queue) -> CostDriver:
    what = f"{queue.name} nodes: {node_count(queue)} x {queue.instance.name}"
    if queue.capacity_type == "CAPACITY_BLOCK":
        return CostDriver(f"{what} from capacity block {queue.reservation}", "paid in advance, used or not")
    if queue.reservation:
        return CostDriver(
            f"{what} from reservation {queue.reservation}", "billed by the hour while reserved, used or not"
        )
    kind = "at the spot price, " if queue.capacity_type == "SPOT" else ""
    always = f"; {queue.min_nodes} always run" if queue.min_nodes else ""
    return CostDriver(what, f"{kind}by the second while they run{always}")


def _volume(plan: ClusterPlan) -> CostDriver:
    volume = plan.volume
    if volume.file_system:
        return CostDriver(f"existing file system {volume.file_system}", "nothing new")
    return CostDriver(
        f"FSx for Lustre: {volume.capacity_gb} GB at {volume.throughput} MB/s per TiB",
        "GB-months from its creation until you delete it: it outlives the cluster",
    )


def _root_gb(plan: ClusterPlan) -> int:
    return plan.head.volume_gb + sum(queue.volume_gb * queue.max_nodes for queue in plan.queues)


def _network(plan: ClusterPlan) -> tuple[CostDriver, ...]:
    address = CostDriver("public IPv4 address of the head node, where it has one", "by the hour")
    if not plan.makes_network:
        return (address,)
    return (CostDriver("NAT gateway with its public address", "by the hour and by GB through it"), address)
