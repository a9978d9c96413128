"""Where a deployment runs: this machine (`embedded`) or an AWS ParallelCluster."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from toolkit.settings.base import Count, Name, Port, Section, Text


class EmbeddedTarget(Section):
    """One machine: a real Slurm whose nodes are network namespaces, engines on CPU."""

    kind: Literal["embedded"]
    root: Path = Field(Path(".toolkit"), description="folder of the embedded cluster: state, logs, models")
    engine_env: Path = Field(
        Path(".venv-engine"), description="Python environment with vLLM, NIXL, connector"
    )
    runs_dir: Path = Field(Path("runs"), description="where run folders are made")
    network: IPv4Network = Field(
        IPv4Network("10.77.0.0/24"), description="private network of the nodes; the machine itself is .1"
    )
    slurm_port: Port = Field(16817, description="slurmctld's port; slurmd uses the next one")
    gpus_per_node: Count = Field(8, description="stand-in GPUs that each engine node offers to Slurm")
    memory_mb: Count = Field(20000, description="memory each node offers to Slurm, MB")

    @field_validator("network")
    @classmethod
    def _private_and_large_enough(cls, network: IPv4Network) -> IPv4Network:
        if not network.is_private or network.prefixlen > 26:
            raise ValueError("must be a private network of at least /26, such as 10.77.0.0/24")
        return network


class ParallelClusterTarget(Section):
    """An AWS ParallelCluster that exists; paths are on the volume its nodes share."""

    kind: Literal["parallelcluster"]
    cluster_name: Name
    region: Text
    gpu_partition: Name = Field("gpu", description="Slurm partition of the engine nodes")
    router_partition: Name = Field("router", description="Slurm partition of router and benchmark client")
    engine_env: Path = Field(Path("/fsx/envs/engine"), description="environment with vLLM, NIXL, connector")
    toolkit_env: Path = Field(Path("/fsx/envs/toolkit"), description="environment with this toolkit")
    runs_dir: Path = Field(Path("/fsx/runs"), description="where run folders are made, shared by all nodes")
    hf_home: Path = Field(Path("/fsx/huggingface"), description="HF_HOME, on the shared volume")

    @field_validator("engine_env", "toolkit_env", "runs_dir", "hf_home")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        if not path.is_absolute():
            raise ValueError("must be an absolute path on the shared volume")
        return path


Target = Annotated[EmbeddedTarget | ParallelClusterTarget, Field(discriminator="kind")]
