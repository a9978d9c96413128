"""What an AWS account holds, as far as a plan is checked against it. Pure; remote/aws_facts.py reads it.

Each fact is an Answer: the thing, None where it does not exist, Unknown where it could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Network
from typing import Literal, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read, and why, such as `AWS refuses ec2:DescribeSubnets`."""

    reason: str


Answer: TypeAlias = T | Unknown | None


@dataclass(frozen=True)
class Subnet:
    """`free`: addresses left, AWS's five of each subnet not among them. `route`: where 0.0.0.0/0 goes."""

    id: str
    zone: str
    zone_id: str
    vpc: str
    cidr: str
    free: int
    public_addresses: bool
    route: Literal["igw", "nat", "other", "none"] | Unknown


@dataclass(frozen=True)
class Vpc:
    """`endpoints`: services with a VPC endpoint, such as s3, ec2."""

    id: str
    dns_support: bool
    dns_hostnames: bool
    endpoints: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation or block. `kind`: EC2's ReservationType; `starts`, `ends`: with a time zone."""

    id: str
    instance_type: str
    zone: str
    state: str
    total: int
    available: int
    criteria: str = "targeted"
    kind: str = "default"
    starts: datetime | None = None
    ends: datetime | None = None
    placement_group: str | None = None  # ARN
    platform: str = "Linux/UNIX"
    tenancy: str = "default"

    @property
    def group_name(self) -> str | None:
        return self.placement_group.rpartition("/")[2] if self.placement_group else None


@dataclass(frozen=True)
class KeyPair:
    """`type`: rsa or ed25519; None where AWS does not say."""

    name: str
    type: str | None


@dataclass(frozen=True)
class Rule:
    """A rule of a security group; it may name several groups and networks. `protocol` -1: all traffic."""

    protocol: str
    first_port: int | None
    last_port: int | None
    groups: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()

    def covers(self, first: int, last: int) -> bool:
        """Whether TCP ports first to last are among its traffic."""
        if self.protocol == "-1":
            return True
        if self.protocol != "tcp" or self.first_port is None or self.last_port is None:
            return False
        return self.first_port <= first and last <= self.last_port

    def reaches(self, network: str) -> bool:
        """Whether one of its networks holds addresses of `network`."""
        return any(IPv4Network(network).overlaps(IPv4Network(each, strict=False)) for each in self.networks)


@dataclass(frozen=True)
class SecurityGroup:
    id: str
    vpc: str
    inbound: tuple[Rule, ...]
    outbound: tuple[Rule, ...]

    @property
    def all_from_itself(self) -> bool:
        return any(rule.protocol == "-1" and self.id in rule.groups for rule in self.inbound)

    @property
    def all_to_itself(self) -> bool:
        return any(rule.protocol == "-1" and self.id in rule.groups for rule in self.outbound)


@dataclass(frozen=True)
class Ami:
    """`tags` are ParallelCluster's: what its build-image wrote about the image."""

    id: str
    name: str
    owner: str
    owner_alias: str | None
    state: str
    architecture: str
    volume_gb: int | None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileSystem:
    """`groups`: the security groups of its network interfaces; None where it shows none."""

    id: str
    type: str
    vpc: str | None
    subnet: str
    lifecycle: str
    groups: tuple[str, ...] | None


@dataclass(frozen=True)
class PlacementGroup:
    name: str
    strategy: str
    state: str


@dataclass(frozen=True)
class Bucket:
    """An S3 bucket that may be used. `region`: None where S3 does not say."""

    name: str
    region: str | None


@dataclass(frozen=True)
class Forbidden:
    """S3 answers 403: it is somebody else's, or these credentials may not see it."""

    name: str


@dataclass(frozen=True)
class Quota:
    """Running vCPUs that a family of instance types may have in the region."""

    code: str
    name: str
    vcpus: float


@dataclass(frozen=True)
class Facts:
    """Everything that was read at `now`. A name that is not in a mapping was not asked for."""

    now: datetime
    region: str
    account: str
    stack: Answer[str] = None  # status of the CloudFormation stack of the cluster's name
    subnets: Mapping[str, Answer[Subnet]] = field(default_factory=dict)
    vpcs: Mapping[str, Answer[Vpc]] = field(default_factory=dict)
    reservations: Mapping[str, Answer[Reservation]] = field(default_factory=dict)
    placement_groups: Mapping[str, Answer[PlacementGroup]] = field(default_factory=dict)
    keys: Mapping[str, Answer[KeyPair]] = field(default_factory=dict)
    security_groups: Mapping[str, Answer[SecurityGroup]] = field(default_factory=dict)
    amis: Mapping[str, Answer[Ami]] = field(default_factory=dict)
    images: Mapping[str, Answer[Ami]] = field(default_factory=dict)  # by the name given to build-image
    official: Answer[Ami] = None
    file_systems: Mapping[str, Answer[FileSystem]] = field(default_factory=dict)
    buckets: Mapping[str, Answer[Bucket | Forbidden]] = field(default_factory=dict)
    objects: Mapping[str, Answer[bool | Forbidden]] = field(default_factory=dict)  # by s3:// address
    instance_types: Mapping[str, Answer[str]] = field(default_factory=dict)  # its architecture
    offered: Mapping[str, Answer[frozenset[str]]] = field(default_factory=dict)  # type: zones
    quotas: Mapping[str, Answer[Quota]] = field(default_factory=dict)  # by code, see quota_code
    vpc_count: Answer[int] = None


# (families, code for on-demand, code for spot): AWS, "Amazon EC2 service quotas"; each counts running vCPUs.
_QUOTAS = (
    (r"(a|c|d|h|i|im|is|m|r|t|z)\d", "L-1216C47A", "L-34B43A08"),
    (r"p[2-4]", "L-417A185B", "L-7212CCBC"),
    (r"p5", "L-417A185B", "L-C4BD4855"),
    (r"p\d", "L-417A185B", None),
    (r"(g|gr|vt)\d", "L-DB2E81BA", "L-3819A6DF"),
)


def quota_code(instance_type: str, *, spot: bool = False) -> str | None:
    """Service Quotas' code of the quota that a type's vCPUs count against; None: not known here."""
    for families, on_demand, of_spot in _QUOTAS:
        if re.match(families, instance_type):
            return of_spot if spot else on_demand
    return None
