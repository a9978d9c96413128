"""What an embedded cluster will be: nodes, addresses, ports, folders. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from toolkit.settings.deployment import Deployment
from toolkit.settings.target import FIRST_NODE, EmbeddedTarget

GPU_PARTITION = "gpu"
ROUTER_PARTITION = "router"
ROUTER_NODE = "router-1"


@dataclass(frozen=True)
class NodePlan:
    """One Slurm node: a network namespace with an address of its own, pinned to some cores."""

    name: str
    partition: str
    address: str
    gpus: int
    cpus: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class EmbeddedPlan:
    """An embedded cluster. `tag` (6 hex digits of the root) keeps two clusters' device names apart."""

    root: Path
    engine_env: Path
    model: str
    network: str
    prefix_length: int
    head_address: str
    slurmctld_port: int
    slurmd_port: int
    memory_mb: int
    nodes: tuple[NodePlan, ...]

    @property
    def tag(self) -> str:
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:6]

    @property
    def slurm_conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"


def plan_embedded(settings: Deployment, base: Path, cores: int) -> EmbeddedPlan:
    """The cluster that holds `settings`' legs; `base`: folder that relative paths start from."""
    target = settings.target
    if not isinstance(target, EmbeddedTarget):
        raise TypeError(f"not an embedded target: {target.kind}")
    names = [
        f"{role}-{i + 1}"
        for role, leg in (("prefill", settings.legs.prefill), ("decode", settings.legs.decode))
        for i in range(leg.replicas)
    ]
    hosts = [str(target.network[FIRST_NODE + i]) for i in range(len(names) + 1)]
    engines = tuple(
        # Two engines that share a core starve each other, so each gets one of its own while they last.
        NodePlan(name, GPU_PARTITION, hosts[i], target.gpus_per_node, target.gpus_per_node, (i % cores,))
        for i, name in enumerate(names)
    )
    router = NodePlan(ROUTER_NODE, ROUTER_PARTITION, hosts[-1], 0, 4, tuple(range(cores)))
    root = (base / target.root).resolve()
    return EmbeddedPlan(
        root=root,
        # Not resolved: a virtual environment is found by its path, which may be a link.
        engine_env=base / target.engine_env,
        model=settings.model.name,
        network=str(target.network),
        prefix_length=target.network.prefixlen,
        head_address=str(target.network[1]),
        slurmctld_port=target.slurm_port,
        slurmd_port=target.slurm_port + 1,
        memory_mb=target.memory_mb,
        nodes=(*engines, router),
    )
