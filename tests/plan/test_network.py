"""Which addresses a cluster's own network has."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network

import pytest

from toolkit.plan.network import plan_network, subnet_cidrs, usable_addresses
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import ParallelClusterTarget

# ParallelCluster 3.14 gives a p5en node an address on each of its 16 cards.
ADDRESSES_PER_NODE = 16


@pytest.mark.parametrize(
    ("cidr", "head", "compute", "nodes"),
    [
        ("10.0.0.0/16", "10.0.0.0/24", "10.0.128.0/17", 2047),
        ("172.16.0.0/18", "172.16.0.0/24", "172.16.32.0/19", 511),
        ("192.168.16.0/20", "192.168.16.0/24", "192.168.24.0/21", 127),
    ],
)
def test_the_compute_subnet_is_the_upper_half(cidr: str, head: str, compute: str, nodes: int) -> None:
    found = subnet_cidrs(IPv4Network(cidr))
    assert found == (IPv4Network(head), IPv4Network(compute))
    assert usable_addresses(found[1]) // ADDRESSES_PER_NODE == nodes


@pytest.mark.parametrize("prefix", range(16, 21))
def test_subnets_lie_in_the_network_and_apart(prefix: int) -> None:
    cidr = IPv4Network(f"10.64.0.0/{prefix}")
    head, compute = subnet_cidrs(cidr)
    assert head.subnet_of(cidr)
    assert compute.subnet_of(cidr)
    assert not head.overlaps(compute)


def test_aws_keeps_five_addresses() -> None:
    assert usable_addresses(IPv4Network("10.0.0.0/28")) == 11
    assert usable_addresses(IPv4Network("10.0.0.0/32")) == 0


def test_a_plan_takes_name_region_and_tags_of_the_target(deployment: Callable[..., Deployment]) -> None:
    target = deployment("qwen3-32b-p5en", "target.network={create: true, cidr: 10.32.0.0/16}").target
    assert isinstance(target, ParallelClusterTarget)
    plan = plan_network(target, "ap-south-1b")
    assert (plan.stack, plan.region, plan.zone) == ("pd-p5en-network", "ap-south-1", "ap-south-1b")
    assert plan.tags == (("project", "pd"),)
    assert plan.compute_cidr == IPv4Network("10.32.128.0/17")
