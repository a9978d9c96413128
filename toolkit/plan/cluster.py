"""What a ParallelCluster will be: nodes, capacity, storage, scripts, interfaces. Pure.

`create(settings)` is `execute(render(plan_cluster(settings, found)))`. What only AWS can tell (the AMI of an
image, the subnets of a network that is made) comes in as Found; without it the plan holds words in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toolkit.errors import SettingsError
from toolkit.plan.image import image_name
from toolkit.plan.instance_type import InstanceType, Nic, known_instance_types, nics
from toolkit.plan.node_check import node_check
from toolkit.plan.node_software import NodeSoftware, node_software, verify_arguments
from toolkit.plan.region import partition_of
from toolkit.settings.cluster import ComputeNodes, NodeRole
from toolkit.settings.target import ParallelClusterTarget

OS = "ubuntu2404"
# They begin the words that stand for an id which only AWS can tell.
AMI_WORD, SUBNET_WORD = "AMI_OF_", "SUBNET_OF_"
CAPACITY_TYPES: Mapping[str, Literal["ONDEMAND", "SPOT", "CAPACITY_BLOCK"]] = {
    "reservation": "ONDEMAND",
    "on-demand": "ONDEMAND",
    "spot": "SPOT",
    "capacity-block": "CAPACITY_BLOCK",
}


@dataclass(frozen=True)
class Found:
    """What was looked up or made before the plan could be whole; None: not yet."""

    ami: str | None = None
    head_subnet: str | None = None
    compute_subnet: str | None = None
    instance_types: Mapping[str, InstanceType] | None = None


@dataclass(frozen=True)
class Script:
    """A script that nodes run at the end of their start; `content` is set for ours, which create uploads."""

    url: str
    args: tuple[str, ...]
    content: str | None = None

    @property
    def bucket(self) -> str:
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def key(self) -> str:
        return self.url.removeprefix("s3://").partition("/")[2]


@dataclass(frozen=True)
class Head:
    """`ami`: as of the cluster's creation, since an update can't change it; None: the official one."""

    instance_type: str
    ami: str | None
    subnet: str
    volume_gb: int
    key_name: str
    allowed_from: str
    scripts: tuple[Script, ...]


@dataclass(frozen=True)
class Queue:
    """A Slurm partition with one compute resource. `setting` is the key its values come from."""

    name: str
    setting: str
    resource: str
    instance: InstanceType
    capacity_type: Literal["ONDEMAND", "SPOT", "CAPACITY_BLOCK"]
    reservation: str | None
    placement_group: str | None
    subnet: str
    security_groups: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    volume_gb: int
    efa: bool
    health_check: bool
    nics: tuple[Nic, ...]
    scripts: tuple[Script, ...]

    @property
    def addresses_per_node(self) -> int:
        """IP addresses that one node takes from its subnet."""
        return sum(nic.has_address for nic in self.nics)


@dataclass(frozen=True)
class Volume:
    """`file_system`: an existing one's id; else a new one of that size, which outlives the cluster."""

    mount: str
    file_system: str | None
    capacity_gb: int
    throughput: int


@dataclass(frozen=True)
class ClusterPlan:
    name: str
    region: str
    version: str
    os: str
    ami: str | None  # of the queues' nodes; None: ParallelCluster's official one
    image: str | None  # the name of the image whose AMI it is
    head: Head
    gpu: Queue
    router: Queue
    volume: Volume
    tags: tuple[tuple[str, str], ...]
    log_retention_days: int
    overrides: Mapping[str, Any]
    makes_network: bool
    unknown: tuple[str, ...]  # what stands for values that only AWS can tell

    @property
    def partition(self) -> str:
        """Of the region, as an ARN names it."""
        return partition_of(self.region)

    @property
    def queues(self) -> tuple[Queue, ...]:
        return (self.gpu, self.router)

    @property
    def scripts(self) -> tuple[Script, ...]:
        """Every script once."""
        parts: tuple[Head | Queue, ...] = (self.head, *self.queues)
        return tuple({script.url: script for part in parts for script in part.scripts}.values())


def parallelcluster_version(target: ParallelClusterTarget, software: NodeSoftware | None = None) -> str:
    return target.version or (software or node_software()).parallelcluster


def plan_cluster(target: ParallelClusterTarget, found: Found = Found()) -> ClusterPlan:
    """The whole cluster; raises SettingsError that names every setting which creating one needs."""
    _require(target)
    software = node_software()
    version = parallelcluster_version(target, software)
    image = None
    if not target.image.ami and not target.image.official:
        image = target.image.name or image_name(software, version)
    ami = found.ami or target.image.ami or (f"{AMI_WORD}{image}" if image else None)
    network = target.network
    head_subnet = found.head_subnet or network.head_subnet or f"{SUBNET_WORD}HEAD_NODE"
    compute_subnet = found.compute_subnet or network.compute_subnet or f"{SUBNET_WORD}COMPUTE_NODES"
    types = found.instance_types or known_instance_types()
    words = (ami or "", head_subnet, compute_subnet)
    return ClusterPlan(
        name=target.cluster_name,
        region=target.region,
        version=version,
        os=OS,
        ami=ami,
        image=image,
        head=_head(target, head_subnet, ami, software),
        gpu=_gpu_queue(target, compute_subnet, types, version, software),
        router=_router_queue(target, compute_subnet, types, version, software),
        volume=_volume(target),
        tags=tuple(target.tags.items()),
        log_retention_days=target.log_retention_days,
        overrides=target.overrides,
        makes_network=network.create,
        unknown=tuple(word for word in words if word.startswith((AMI_WORD, SUBNET_WORD))),
    )


def _head(target: ParallelClusterTarget, subnet: str, ami: str | None, software: NodeSoftware) -> Head:
    return Head(
        instance_type=target.head.instance_type,
        ami=ami,
        subnet=subnet,
        volume_gb=target.head.volume_gb,
        key_name=target.ssh.key_name or "",
        allowed_from=str(target.ssh.allowed_from),
        scripts=_scripts(target, "head", software, 0),
    )


def _volume(target: ParallelClusterTarget) -> Volume:
    return Volume(
        mount=str(target.storage.mount),
        file_system=target.storage.file_system,
        capacity_gb=target.storage.capacity_gb or 4800,
        throughput=target.storage.throughput or 250,
    )


def instance_type(name: str, types: Mapping[str, InstanceType]) -> InstanceType:
    """Facts of a type; of one that nobody knows, a plain one without GPU and EFA: a check names it."""
    return types.get(name) or InstanceType(name, 0, 0, 0, None, 1, 1, 0, ())


def _gpu_queue(
    target: ParallelClusterTarget,
    subnet: str,
    types: Mapping[str, InstanceType],
    version: str,
    software: NodeSoftware,
) -> Queue:
    instance = instance_type(target.gpu.instance_type, types)
    interfaces = nics(instance, efa=target.gpu.efa, version=version)
    devices = sum(nic.kind != "interface" for nic in interfaces)
    return Queue(
        name=target.gpu_partition,
        setting="target.gpu",
        resource=_resource(target.gpu),
        instance=instance,
        capacity_type=CAPACITY_TYPES[target.capacity.kind],
        reservation=target.capacity.reservation,
        placement_group=target.capacity.placement_group,
        subnet=subnet,
        security_groups=target.network.security_groups,
        min_nodes=target.gpu.min_nodes,
        max_nodes=target.gpu.max_nodes,
        volume_gb=target.gpu.volume_gb,
        efa=target.gpu.efa,
        health_check=target.gpu.health_check,
        nics=interfaces,
        scripts=_scripts(target, "gpu", software, devices),
    )


def _router_queue(
    target: ParallelClusterTarget,
    subnet: str,
    types: Mapping[str, InstanceType],
    version: str,
    software: NodeSoftware,
) -> Queue:
    instance = instance_type(target.router.instance_type, types)
    return Queue(
        name=target.router_partition,
        setting="target.router",
        resource=_resource(target.router),
        instance=instance,
        capacity_type="ONDEMAND",
        reservation=None,
        placement_group=None,
        subnet=subnet,
        security_groups=target.network.security_groups,
        min_nodes=target.router.min_nodes,
        max_nodes=target.router.max_nodes,
        volume_gb=target.router.volume_gb,
        efa=False,
        health_check=False,
        nics=nics(instance, efa=False, version=version),
        scripts=_scripts(target, "router", software, 0),
    )


def _resource(nodes: ComputeNodes) -> str:
    """A compute resource is named after its instance family: p5en."""
    return nodes.instance_type.partition(".")[0]


def _scripts(
    target: ParallelClusterTarget, role: NodeRole, software: NodeSoftware, efa_devices: int
) -> tuple[Script, ...]:
    """Ours, which checks that the node is what the plan says, then the user's."""
    own = tuple(Script(each.script, each.args) for each in target.scripts if role in each.nodes)
    if target.image.official:
        return own
    text = node_check()
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    url = f"s3://{target.bucket}/{target.cluster_name}/verify-{digest}.sh"
    arguments = verify_arguments(role, software, efa_devices=efa_devices, mounts=(target.storage.mount,))
    return (Script(url, arguments, text), *own)


def _require(target: ParallelClusterTarget) -> None:
    needed = {
        "network.head_subnet": target.network.head_subnet or target.network.create,
        "network.compute_subnet": target.network.compute_subnet or target.network.create,
        "ssh.key_name": target.ssh.key_name,
        "bucket": target.bucket or target.image.official,
        "capacity.reservation": target.capacity.reservation or target.capacity.kind in ("on-demand", "spot"),
    }
    missing = [f"target.{key}" for key, given in needed.items() if not given]
    if missing:
        raise SettingsError(
            f"making cluster {target.cluster_name} needs settings that are not given: {', '.join(missing)}.",
            next_step="add them to the file; docs/runbooks/first-cluster.md says where each is found; "
            "target.network.create: true makes the subnets",
        )
