"""A cluster's head node as AWS knows it: where it is, and what its console says of its host keys."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.remote.aws_instances import cluster_instances, console_output


@dataclass(frozen=True)
class FoundHead:
    """`ip` is the public address where there is one, else the private one."""

    instance_id: str
    ip: str
    console_output: str


def find_head(cluster: str, region: str) -> FoundHead:
    """The head node that runs; ToolkitError with what there is in its place, if anything."""
    heads = [each for each in cluster_instances(cluster, region) if each.role == "HeadNode"]
    running = [each for each in heads if each.state == "running"]
    if not running:
        there = f"its head node {heads[0].id} is {heads[0].state}" if heads else "it has no head node"
        raise ToolkitError(
            f"cluster {cluster} in {region} can't be reached: {there}.",
            next_step="`toolkit cluster describe -f FILE` shows its state; `toolkit cluster create -f FILE` "
            "makes it",
        )
    head = running[0]
    return FoundHead(head.id, head.public_ip or head.private_ip, console_output(head.id, region))
