"""The network of a cluster that brings its own: which addresses each subnet has, and where. Pure.

`target.network.create` leads here; remote/aws_network.py makes it from pcluster-config/network.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

from toolkit.settings.target import ParallelClusterTarget

# AWS keeps the first four addresses of a subnet and the last one (VPC guide, "Subnet sizing for IPv4").
KEPT_BY_AWS = 5
HEAD_PREFIX = 24


@dataclass(frozen=True)
class NetworkPlan:
    """`zone` is the name of an availability zone, such as ap-south-1b."""

    name: str
    region: str
    zone: str
    cidr: IPv4Network
    head_cidr: IPv4Network
    compute_cidr: IPv4Network
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def stack(self) -> str:
        return stack_name(self.name)


def plan_network(target: ParallelClusterTarget, zone: str) -> NetworkPlan:
    """The network of a cluster whose GPU nodes are in `zone`."""
    head, compute = subnet_cidrs(target.network.cidr)
    return NetworkPlan(
        name=target.cluster_name,
        region=target.region,
        zone=zone,
        cidr=target.network.cidr,
        head_cidr=head,
        compute_cidr=compute,
        tags=tuple(target.tags.items()),
    )


def stack_name(cluster: str) -> str:
    """Of the CloudFormation stack that holds a cluster's network."""
    return f"{cluster}-network"


def subnet_cidrs(cidr: IPv4Network) -> tuple[IPv4Network, IPv4Network]:
    """(head, compute): a /24, and the whole upper half, since a node may take 16 addresses. What lies between
    stays free. `cidr` is a /16 to /20, as settings have it."""
    lower, upper = cidr.subnets(prefixlen_diff=1)
    return next(lower.subnets(new_prefix=HEAD_PREFIX)), upper


def usable_addresses(cidr: IPv4Network) -> int:
    """How many interfaces a subnet has addresses for."""
    return max(0, cidr.num_addresses - KEPT_BY_AWS)
