"""What a healthy node or cluster of a deployment looks like: numbers, versions, folders to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Versions:
    """Of a GPU node's software; empty: any. `kernel`: release as `uname -r` prints it."""

    kernel: str = ""
    nvidia_driver: str = ""
    cuda: str = ""
    efa_installer: str = ""
    efa_module: str = ""
    libfabric: str = ""
    rdma_core: str = ""


@dataclass(frozen=True)
class SharedFolder:
    """A folder that nodes share. `filesystem`: of its mount, such as lustre; empty: any, also a local one."""

    path: str
    filesystem: str = ""
    needed: bool = True  # False: made when first used


@dataclass(frozen=True)
class Wanted:
    """`gpus`, `efa_devices`: of a node; None: whatever is there, 0: none, and then their checks do not apply.

    `ports`: of the engine or router that the node runs; `own_jobs`: our Slurm jobs that run on it now.
    `now`: Unix seconds of the examination.
    """

    gpus: int | None = None
    efa_devices: int | None = None
    numa_nodes: int | None = None
    versions: Versions = Versions()
    shared: tuple[SharedFolder, ...] = ()
    ports: tuple[int, ...] = ()
    own_jobs: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    tensor_parallel: int = 0
    parallelcluster: bool = False
    gpu_partition: str = ""
    gpu_nodes: int = 0
    reservation: str | None = None
    now: float = field(default=0.0, compare=False)
    least_disk_mb_per_s: float = 500.0
