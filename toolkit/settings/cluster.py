"""What an AWS ParallelCluster is made of: network, capacity, nodes, storage, image, access.

Everything here has a default or may be left out where the cluster exists already; `toolkit cluster create`
asks for the rest. Defaults follow the published environment.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from toolkit.settings.base import Count, Folder, Port, Section, Switch, Text, aws_id, disagree, pattern
from toolkit.settings.bucket import ScriptUrl
from toolkit.settings.mount import Mount

SubnetId = Annotated[str, aws_id("subnet")]
SecurityGroupId = Annotated[str, aws_id("sg")]
ReservationId = Annotated[str, aws_id("cr")]
AmiId = Annotated[str, aws_id("ami")]
FileSystemId = Annotated[
    str, Field(strict=True, pattern=pattern(r"^fs-[0-9a-f]{17}$", "fs- and 17 hex digits"))
]
InstanceTypeName = Annotated[
    str,
    Field(
        strict=True, pattern=pattern(r"^[a-z0-9-]+\.[a-z0-9-]+$", "an instance type, such as p5en.48xlarge")
    ),
]
ImageName = Annotated[
    str,
    Field(
        strict=True,
        max_length=128,
        pattern=pattern(r"^[a-zA-Z][a-zA-Z0-9-]+$", "letters, digits and '-', starting with a letter"),
    ),
]
Nodes = Annotated[int, Field(strict=True, ge=0, le=1000)]
NodeRole = Literal["head", "gpu", "router"]


class ClusterNetwork(Section):
    create: Switch = Field(
        False, description="make a VPC with a public and a private subnet for this cluster"
    )
    cidr: IPv4Network = Field(IPv4Network("10.0.0.0/16"), description="addresses of the VPC that is made")
    head_subnet: SubnetId | None = Field(None, description="public, or reachable over a VPN")
    compute_subnet: SubnetId | None = Field(
        None, description="private, with a NAT gateway; in the reservation's availability zone"
    )
    security_groups: tuple[SecurityGroupId, ...] = Field(
        (), description="of GPU and router nodes, beside the one ParallelCluster makes"
    )

    @model_validator(mode="after")
    def _made_or_named(self) -> Self:
        named = [key for key in ("head_subnet", "compute_subnet") if getattr(self, key)]
        if self.create and named:
            raise disagree("network.create makes the subnets, so none can be named", "create", *named)
        if self.create and not 16 <= self.cidr.prefixlen <= 20:
            raise disagree(f"cidr {self.cidr} can't hold both subnets: give a /16 to /20", "create", "cidr")
        return self


class Capacity(Section):
    """Where the GPU nodes come from."""

    kind: Literal["reservation", "capacity-block", "on-demand", "spot"] = Field(
        "reservation", description="reservation: a targeted On-Demand Capacity Reservation (ODCR)"
    )
    reservation: ReservationId | None = Field(None, description="id of the ODCR or capacity block")
    placement_group: Text | None = Field(
        None, description="name of an existing placement group; none, as published, or the ODCR's own"
    )

    @model_validator(mode="after")
    def _reservation_fits(self) -> Self:
        if self.reservation and self.kind in ("on-demand", "spot"):
            raise disagree(
                f"capacity of kind {self.kind} can't use reservation {self.reservation}; "
                "kind: reservation does",
                "kind",
                "reservation",
            )
        return self


class HeadNode(Section):
    instance_type: InstanceTypeName = "c6i.2xlarge"
    volume_gb: Count = 200


class ComputeNodes(Section):
    """One Slurm partition of equal nodes."""

    instance_type: InstanceTypeName
    min_nodes: Nodes = Field(description="nodes that are always up")
    max_nodes: Annotated[Nodes, Field(ge=1)]
    volume_gb: Count = 200

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.min_nodes > self.max_nodes:
            raise disagree(
                f"min_nodes {self.min_nodes} is more than max_nodes {self.max_nodes}",
                "min_nodes",
                "max_nodes",
            )
        return self


class GpuNodes(ComputeNodes):
    instance_type: InstanceTypeName = "p5en.48xlarge"
    min_nodes: Nodes = Field(2, description="nodes that are always up")
    max_nodes: Annotated[Nodes, Field(ge=1)] = 2
    efa: Switch = Field(True, description="an EFA interface on every network card")
    health_check: Switch = Field(True, description="ParallelCluster's GPU check before each job")


class RouterNodes(ComputeNodes):
    instance_type: InstanceTypeName = "c6i.4xlarge"
    min_nodes: Nodes = Field(1, description="nodes that are always up")
    max_nodes: Annotated[Nodes, Field(ge=1)] = 1
    volume_gb: Count = 100


class Storage(Section):
    """The shared volume: an existing FSx for Lustre, or one made with the cluster, which outlives it."""

    mount: Mount = Path("/fsx")
    file_system: FileSystemId | None = Field(None, description="an existing FSx for Lustre")
    capacity_gb: Count | None = Field(None, description="of a new one: 1200 or a multiple of 2400; 4800")
    throughput: Literal[125, 250, 500, 1000] | None = Field(
        None, description="of a new one, MB/s per TiB; 250"
    )

    @field_validator("capacity_gb")
    @classmethod
    def _a_size_that_is_sold(cls, size: int | None) -> int | None:
        if size is not None and size != 1200 and size % 2400:
            raise ValueError("must be 1200 or a multiple of 2400")
        return size

    @model_validator(mode="after")
    def _new_or_existing(self) -> Self:
        for key in ("capacity_gb", "throughput"):
            if self.file_system and getattr(self, key) is not None:
                raise disagree(
                    f"{key} belongs to a new file system, not to {self.file_system}", "file_system", key
                )
        return self


class Image(Section):
    """The nodes' AMI: named, or the one that `toolkit image build` made for these versions."""

    ami: AmiId | None = Field(None, description="an AMI made by ParallelCluster's build-image; beats name")
    name: ImageName | None = Field(
        None, description="of the image to build and use; default: from the versions"
    )
    official: Switch = Field(
        False, description="use ParallelCluster's own AMI as it is, with its older driver, CUDA and EFA"
    )
    build_instance_type: InstanceTypeName = Field(
        "g6.4xlarge", description="with a GPU, so that modules load"
    )
    volume_gb: Count = 120

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.official and self.ami:
            raise disagree("image.official and image.ami exclude each other", "official", "ami")
        return self


class Ssh(Section):
    """How this machine reaches the head node."""

    host: Text | None = Field(
        None, description="of the head node; default: asked of AWS; `local`: this machine is the head node"
    )
    port: Port = 22
    user: Text = "ubuntu"
    key_name: Text | None = Field(None, description="name of the EC2 key pair, ed25519")
    key_file: Folder | None = Field(None, description="its private key; default: the ssh agent's keys")
    known_hosts: Folder = Path("~/.config/pd-toolkit/known_hosts")
    fingerprint: (
        Annotated[
            str,
            Field(strict=True, pattern=pattern(r"^SHA256:[A-Za-z0-9+/]{43}$", "SHA256: and 43 characters")),
        ]
        | None
    ) = Field(None, description="of the head node's host key; default: from its console output")
    allowed_from: IPv4Network = Field(
        IPv4Network("0.0.0.0/0"), description="addresses that may reach the head node's ssh port"
    )

    @field_validator("known_hosts", "key_file")
    @classmethod
    def _home_expanded(cls, path: Path | None) -> Path | None:
        return path and path.expanduser()


class Script(Section):
    """A script of yours that ParallelCluster runs at the end of a node's start."""

    script: ScriptUrl
    args: tuple[Text, ...] = ()
    nodes: tuple[NodeRole, ...] = Field(("head", "gpu", "router"), min_length=1)
