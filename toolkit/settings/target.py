"""Where a deployment runs: this machine (`embedded`) or an AWS ParallelCluster."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from toolkit.settings.base import Count, Folder, Name, Port, Section, Text

PRIVATE = tuple(IPv4Network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
# Addresses of the network below this one are the machine's own or spare.
FIRST_NODE = 11


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
    """An AWS ParallelCluster that exists; paths are on the volume its nodes share."""

    kind: Literal["parallelcluster"]
    cluster_name: Name
    region: Text
    gpu_partition: Name = Field("gpu", description="Slurm partition of the engine nodes")
    router_partition: Name = Field("router", description="Slurm partition of router and benchmark client")
    engine_env: Folder = Field(Path("/fsx/envs/engine"), description="environment with vLLM, NIXL, connector")
    toolkit_env: Folder = Field(Path("/fsx/envs/toolkit"), description="environment with this toolkit")
    runs_dir: Folder = Field(Path("/fsx/runs"), description="where run folders are made, shared by all nodes")
    hf_home: Folder = Field(Path("/fsx/huggingface"), description="HF_HOME, on the shared volume")

    @field_validator("engine_env", "toolkit_env", "runs_dir", "hf_home")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        if not path.is_absolute():
            raise ValueError("must be an absolute path on the shared volume, without ~")
        return path


Target = Annotated[EmbeddedTarget | ParallelClusterTarget, Field(discriminator="kind")]
