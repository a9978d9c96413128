"""Where a deployment runs: this machine (`embedded`) or an AWS ParallelCluster."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from toolkit.settings.base import Count, Folder, Port, Section, disagree, pattern
from toolkit.settings.bucket import BucketName
from toolkit.settings.cluster import (
    Capacity,
    ClusterNetwork,
    GpuNodes,
    HeadNode,
    Image,
    RouterNodes,
    Script,
    Ssh,
    Storage,
)
from toolkit.settings.override import owned_override
from toolkit.settings.tags import Tags

PRIVATE = tuple(IPv4Network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
# Addresses of the network below this one are the machine's own or spare.
FIRST_NODE = 11
# Both a ParallelCluster queue and a Slurm partition.
QueueName = Annotated[
    str,
    Field(
        strict=True, pattern=pattern(r"^[a-z][a-z0-9-]{0,24}$", "1 to 25 lower-case letters, digits and '-'")
    ),
]


class EmbeddedTarget(Section):
    """One machine: a real Slurm whose nodes are network namespaces, engines on CPU."""

    kind: Literal["embedded"]
    root: Folder = Field(Path(".toolkit"), description="folder of the embedded cluster: state, logs, models")
    engine_env: Folder = Field(
        Path(".venv-engine"), description="Python environment with vLLM, NIXL, connector"
    )
    runs_dir: Folder = Field(Path("runs"), description="where run folders are made")
    network: IPv4Network = Field(
        IPv4Network("10.77.0.0/24"), description="private network of the nodes; the machine itself is .1"
    )
    slurm_port: Annotated[Port, Field(le=65534)] = Field(
        16817, description="slurmctld's port; slurmd uses the next one"
    )
    gpus_per_node: Annotated[Count, Field(le=256)] = Field(
        8, description="stand-in GPUs that each engine node offers to Slurm"
    )
    memory_mb: Count = Field(20000, description="memory each node offers to Slurm, MB")

    @field_validator("network")
    @classmethod
    def _private_and_large_enough(cls, network: IPv4Network) -> IPv4Network:
        if not any(network.subnet_of(private) for private in PRIVATE) or network.prefixlen > 26:
            raise ValueError(
                "must be a private network of at least /26, such as 10.77.0.0/24, "
                "within 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16"
            )
        return network

    @field_validator("root", "engine_env", "runs_dir")
    @classmethod
    def _home_expanded(cls, path: Path) -> Path:
        try:
            return path.expanduser()
        except RuntimeError as error:
            raise ValueError(f"{path.parts[0]} is no user of this machine with a home folder") from error

    @property
    def most_nodes(self) -> int:
        """Nodes that the network has addresses for, the router's included; the last one is for broadcast."""
        return self.network.num_addresses - 1 - FIRST_NODE


class ParallelClusterTarget(Section):
    """An AWS ParallelCluster; paths are those of its nodes."""

    kind: Literal["parallelcluster"]
    cluster_name: Annotated[
        str,
        Field(
            strict=True,
            pattern=pattern(
                r"^[a-zA-Z][a-zA-Z0-9-]{0,59}$", "1 to 60 letters, digits and '-', a letter first"
            ),
        ),
    ]
    region: Annotated[
        str,
        Field(
            strict=True,
            pattern=pattern(r"^[a-z]{2}(-[a-z]+)+-\d$", "an AWS region, such as ap-south-1"),
            description="untested where it is one of China or GovCloud",
        ),
    ]
    version: (
        Annotated[
            str,
            Field(
                strict=True, pattern=pattern(r"^3\.\d+\.\d+$", "a ParallelCluster version, such as 3.14.2")
            ),
        ]
        | None
    ) = Field(None, description="of ParallelCluster; default: the one of ami-setup/versions.yaml")
    network: ClusterNetwork = ClusterNetwork()
    capacity: Capacity = Capacity()
    head: HeadNode = HeadNode()
    gpu: GpuNodes = GpuNodes()
    router: RouterNodes = RouterNodes()
    storage: Storage = Storage()
    image: Image = Image()
    ssh: Ssh = Ssh()
    bucket: BucketName | None = Field(
        None, description="S3 bucket for the nodes' check script and the image's payload; made if missing"
    )
    scripts: tuple[Script, ...] = Field((), description="scripts of yours that nodes run at their start")
    tags: Tags = Field({}, description="tags of everything the cluster is made of")
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365] = 14
    overrides: dict[str, Any] = Field(
        {}, description="sections of ParallelCluster's configuration that no setting here decides"
    )
    gpu_partition: QueueName = Field("gpu", description="Slurm partition of the engine nodes")
    router_partition: QueueName = Field(
        "router", description="Slurm partition of router and benchmark client"
    )
    engine_env: Folder = Field(Path("/opt/pd/engine"), description="environment with vLLM, NIXL, connector")
    toolkit_env: Folder = Field(Path("/opt/pd/toolkit"), description="environment with this toolkit")
    runs_dir: Folder = Field(Path("/fsx/runs"), description="where run folders are made, shared by all nodes")
    hf_home: Folder = Field(Path("/fsx/huggingface"), description="HF_HOME, on the shared volume")

    @field_validator("engine_env", "toolkit_env", "runs_dir", "hf_home")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        if not path.is_absolute():
            raise ValueError("must be an absolute path on the cluster's nodes, without ~")
        return path

    @field_validator("overrides")
    @classmethod
    def _beside_the_settings(cls, overrides: dict[str, Any]) -> dict[str, Any]:
        if owned := owned_override(overrides):
            raise ValueError(f"{owned} is decided by settings of target, see `toolkit settings schema`")
        return overrides

    @model_validator(mode="after")
    def _partitions_differ(self) -> Self:
        if self.gpu_partition == self.router_partition:
            raise disagree(
                "gpu_partition and router_partition must differ", "gpu_partition", "router_partition"
            )
        return self


Target = Annotated[EmbeddedTarget | ParallelClusterTarget, Field(discriminator="kind")]
