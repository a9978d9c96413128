"""Checks of region, subnets, routes and security groups."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from toolkit.plan import cluster_document as document_of
from toolkit.plan.aws_facts import SecurityGroup, Subnet, Unknown
from toolkit.plan.region import partition_of
from toolkit.preflight.problem import Problem
from toolkit.preflight.schema_keys import schema_keys
from toolkit.preflight.subject import Check, Subject, Unread

HEAD = "target.network.head_subnet"
COMPUTE = "target.network.compute_subnet"
GROUPS = "target.network.security_groups"
# What nodes call on while they start (ParallelCluster guide, "in a single subnet with no internet access").
NEEDED_ENDPOINTS = ("cloudformation", "dynamodb", "ec2", "logs", "s3")
DEFAULT_VPC_QUOTA = 5


def region_known(s: Subject) -> Iterator[Problem]:
    regions = schema_keys().regions
    if s.region not in regions:
        near = difflib.get_close_matches(s.region, regions, n=1)
        yield s.error(
            "target.region",
            "is no region that ParallelCluster works in" + (f"; did you mean {near[0]}?" if near else ""),
            f"set target.region: {near[0]}" if near else f"choose one of {', '.join(regions)}",
        )


def region_tested(s: Subject) -> Iterator[Problem]:
    partition = partition_of(s.region)
    if partition != "aws":
        yield s.warning(
            "target.region",
            f"is in partition {partition}, in which this toolkit was never tried",
            "go on step by step, or choose a region of partition aws",
        )


def subnet_exists(s: Subject) -> Iterator[Problem]:
    for key, name in ((HEAD, s.plan.head.subnet), (COMPUTE, s.plan.gpu.subnet), *_other_subnets(s)):
        if name.startswith("subnet-") and s.subnet(name) is None:
            yield s.error(
                key,
                f"there is no such subnet in {s.region} of account {s.facts.account}",
                f"`aws ec2 describe-subnets --region {s.region}` lists those there are; "
                "target.network.create: true makes them",
                value=name,
            )


def one_vpc(s: Subject) -> Iterator[Problem]:
    head, compute = s.head_subnet, s.compute_subnet
    if head and compute and head.vpc != compute.vpc:
        yield s.error(
            COMPUTE,
            f"is in {compute.vpc}, but target.network.head_subnet {head.id} is in {head.vpc}",
            "name two subnets of one VPC",
        )


def vpc_names(s: Subject) -> Iterator[Problem]:
    compute = s.compute_subnet
    vpc = s.asked(s.facts.vpcs, compute.vpc) if compute else None
    if vpc and not (vpc.dns_support and vpc.dns_hostnames):
        off = " and ".join(
            name
            for name, on in (("enableDnsSupport", vpc.dns_support), ("enableDnsHostnames", vpc.dns_hostnames))
            if not on
        )
        yield s.error(
            COMPUTE,
            f"{vpc.id} has {off} off: nodes could not find the head node and the file system by name",
            f"`aws ec2 modify-vpc-attribute --vpc-id {vpc.id} --enable-dns-support` and "
            "`--enable-dns-hostnames`",
        )


def addresses(s: Subject) -> Iterator[Problem]:
    """All queues that share a subnet are counted; AWS's own five addresses are not among the free ones."""
    compute = s.compute_subnet
    if s.updates or not compute:
        return
    queues = [queue for queue in s.plan.queues if queue.subnet == compute.id]
    head = int(s.plan.head.subnet == compute.id)
    least = head + sum(queue.min_nodes * queue.addresses_per_node for queue in queues)
    most = head + sum(queue.max_nodes * queue.addresses_per_node for queue in queues)
    words = " + ".join(
        f"{queue.max_nodes} x {queue.instance.name} with {queue.addresses_per_node}" for queue in queues
    )
    reason = f"{compute.cidr} has {compute.free} free addresses, but {most} are needed: {words}"
    step = f"name a subnet with at least {most} free addresses"
    if least > compute.free:
        yield s.error(COMPUTE, reason, step)
    elif most > compute.free:
        yield s.warning(COMPUTE, reason, step + ", or lower max_nodes")


def public_addresses(s: Subject) -> Iterator[Problem]:
    compute, queue = s.compute_subnet, s.plan.gpu
    if not compute or not compute.public_addresses:
        return
    if len(queue.nics) > 1:
        yield s.error(
            COMPUTE,
            f"gives public addresses, which EC2 refuses to a {queue.instance.name} with its "
            f"{len(queue.nics)} network interfaces",
            "name a private subnet that has a route to a NAT gateway",
        )
    else:
        yield s.warning(
            COMPUTE,
            "gives public addresses: compute nodes will be reachable from the internet",
            "name a private subnet that has a route to a NAT gateway",
        )


def compute_route(s: Subject) -> Iterator[Problem]:
    compute = s.compute_subnet
    if not compute:
        return
    route = _route(compute)
    if route == "igw" and not compute.public_addresses:
        yield s.error(
            COMPUTE,
            "its default route is an internet gateway, which serves only nodes with public addresses; "
            "these have none, so they reach neither AWS's API nor the internet",
            "route 0.0.0.0/0 of its route table to a NAT gateway",
        )
    if route == "none":
        vpc = s.asked(s.facts.vpcs, compute.vpc)
        missing = [name for name in NEEDED_ENDPOINTS if not vpc or name not in vpc.endpoints]
        step = "route 0.0.0.0/0 of its route table to a NAT gateway"
        if missing:
            yield s.error(
                COMPUTE,
                "has no default route and its VPC no endpoint for "
                f"{', '.join(missing)}: nodes could not start",
                step,
            )
        else:
            yield s.warning(
                COMPUTE, "has no default route: models can't be downloaded from the internet", step
            )


def head_route(s: Subject) -> Iterator[Problem]:
    head = s.head_subnet
    if not head:
        return
    route = _route(head)
    elastic = document_of.value_at(s.document, "HeadNode.Networking.ElasticIp")
    if route == "none":
        yield s.error(
            HEAD,
            "has no default route: the head node could reach neither AWS's API nor the internet",
            "route 0.0.0.0/0 of its route table to an internet gateway, or a NAT gateway",
        )
    elif route == "igw" and not head.public_addresses and not elastic:
        yield s.error(
            HEAD,
            "its default route is an internet gateway, but it gives no public address to use it with",
            "let the subnet give public addresses, or set "
            "target.overrides.HeadNode.Networking.ElasticIp: true",
        )
    elif route != "igw":
        yield s.warning(
            HEAD,
            "has no route to an internet gateway: the head node is reached only from inside the network",
            "connect by VPN or a jump host (target.ssh.host), or name a public subnet",
        )


def group_exists(s: Subject) -> Iterator[Problem]:
    """They stand beside ParallelCluster's own group, which lets the head node through."""
    compute = s.compute_subnet
    for name in s.plan.gpu.security_groups:
        found = s.security_group(name)
        if found is None:
            yield s.error(
                GROUPS,
                f"there is no security group {name} in {s.region} of account {s.facts.account}",
                f"`aws ec2 describe-security-groups --region {s.region}` lists those there are",
                value=name,
            )
        elif compute and found.vpc != compute.vpc:
            yield s.error(
                GROUPS,
                f"{name} belongs to {found.vpc}, but the compute subnet is in {compute.vpc}",
                f"name a security group of {compute.vpc}",
                value=name,
            )


def group_lets_efa_through(s: Subject) -> Iterator[Problem]:
    """Of every group: EFA failed its health check where only one of several had the rules
    (awslabs/awsome-distributed-ai#259, #546)."""
    if not s.plan.gpu.efa:
        return
    for found in filter(None, map(s.security_group, s.plan.gpu.security_groups)):
        ways = [way for way, ok in (("from", found.all_from_itself), ("to", found.all_to_itself)) if not ok]
        if ways:
            yield s.error(
                GROUPS,
                f"{found.id} has no rule that allows all traffic {' and '.join(ways)} itself, which EFA "
                "needs of every security group; 0.0.0.0/0 does not do",
                _self_rules(found, ways),
                value=found.id,
            )


def _self_rules(group: SecurityGroup, ways: list[str]) -> str:
    commands = {"from": "authorize-security-group-ingress", "to": "authorize-security-group-egress"}
    permission = f"'IpProtocol=-1,UserIdGroupPairs=[{{GroupId={group.id}}}]'"
    return " and ".join(
        f"`aws ec2 {commands[way]} --group-id {group.id} --ip-permissions {permission}`" for way in ways
    )


def room_for_a_vpc(s: Subject) -> Iterator[Problem]:
    count = s.known(s.facts.vpc_count) if s.plan.makes_network else None
    if count is not None and count >= DEFAULT_VPC_QUOTA:
        yield s.warning(
            "target.network.create",
            f"the region has {count} VPCs, and an account may have {DEFAULT_VPC_QUOTA} unless it asked for "
            "more",
            "name subnets of a VPC there is, or have the quota raised",
        )


def _route(subnet: Subnet) -> Any:
    if isinstance(subnet.route, Unknown):
        raise Unread(subnet.route.reason)
    return subnet.route


def _other_subnets(s: Subject) -> Iterator[tuple[str, str]]:
    """Of login nodes, which only overrides can ask for."""
    for group in document_of.node_groups(s.document):
        if group.path.startswith("LoginNodes"):
            for name in group.subnets:
                yield "target.overrides.LoginNodes.Pools", name


CHECKS: tuple[Check, ...] = (
    region_known,
    region_tested,
    subnet_exists,
    one_vpc,
    vpc_names,
    addresses,
    public_addresses,
    compute_route,
    head_route,
    group_exists,
    group_lets_efa_through,
    room_for_a_vpc,
)
