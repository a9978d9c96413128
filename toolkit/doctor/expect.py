"""Settings to what a healthy node, engine and cluster of them look like. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from toolkit.doctor.wanted import SharedFolder, Versions, Wanted
from toolkit.plan.embedded import GPU_PARTITION, ROUTER_PARTITION
from toolkit.plan.instance_type import known_instance_types
from toolkit.plan.node_software import node_software
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import EmbeddedTarget, ParallelClusterTarget


def shipped_versions() -> Versions:
    """The versions that a GPU node's image is built with."""
    software = node_software()
    return Versions(**{name: getattr(software, name) for name in Versions.__dataclass_fields__})


def wanted_on_machine() -> Wanted:
    """Of a machine that is judged without settings: what is there, at the versions of our image."""
    return Wanted(versions=shipped_versions())


def wanted_on_node(
    settings: Deployment, partitions: Sequence[str], runs: PurePosixPath, own_jobs: Sequence[str] = ()
) -> Wanted:
    """Of a node by its Slurm partitions. `runs`: where the target keeps run folders."""
    gpu_partition, router_partition = partition_names(settings)
    target, jobs = settings.target, tuple(own_jobs)
    ports = _engine_ports(settings) if gpu_partition in partitions else ()
    if router_partition in partitions:
        ports = (*ports, settings.router.port)
    if isinstance(target, EmbeddedTarget):
        runs_folder = SharedFolder(str(runs), needed=False)
        return Wanted(gpus=0, efa_devices=0, shared=(runs_folder,), ports=ports, own_jobs=jobs)
    mount = str(target.storage.mount)
    shared = (SharedFolder(mount, "lustre"), _folder(target, str(runs), needed=False))
    if gpu_partition not in partitions:
        return Wanted(gpus=0, efa_devices=0, shared=shared, ports=ports, own_jobs=jobs, parallelcluster=True)
    instance = known_instance_types().get(target.gpu.instance_type)
    efa = (instance.efa_interfaces if instance else None) if target.gpu.efa else 0
    return Wanted(
        gpus=instance.gpus if instance else None,
        efa_devices=efa,
        numa_nodes=instance.numa_nodes if instance and efa else None,
        versions=Versions() if target.image.official else shipped_versions(),
        shared=(*shared, _folder(target, str(target.hf_home), needed=True)),
        ports=ports,
        own_jobs=jobs,
        backends=settings.kv.backends,
        tensor_parallel=settings.legs.prefill.tensor_parallel,
        parallelcluster=True,
    )


def wanted_of_cluster(settings: Deployment, now: float) -> Wanted:
    """`now`: Unix seconds of the examination."""
    target = settings.target
    engines = settings.legs.prefill.replicas + settings.legs.decode.replicas
    if isinstance(target, EmbeddedTarget):
        gpus: int | None = target.gpus_per_node
    else:
        instance = known_instance_types().get(target.gpu.instance_type)
        gpus = instance.gpus if instance else None
    cluster = target if isinstance(target, ParallelClusterTarget) else None
    return Wanted(
        gpus=gpus,
        parallelcluster=cluster is not None,
        gpu_partition=partition_names(settings)[0],
        gpu_nodes=engines,
        reservation=cluster.capacity.reservation if cluster else None,
        now=now,
    )


def partition_names(settings: Deployment) -> tuple[str, str]:
    """Of the engines and of the router."""
    target = settings.target
    if isinstance(target, EmbeddedTarget):
        return GPU_PARTITION, ROUTER_PARTITION
    return target.gpu_partition, target.router_partition


def _engine_ports(settings: Deployment) -> tuple[int, ...]:
    legs = (settings.legs.prefill, settings.legs.decode)
    return tuple(dict.fromkeys(port for leg in legs for port in (leg.port, leg.side_channel_port)))


def _folder(target: ParallelClusterTarget, path: str, *, needed: bool) -> SharedFolder:
    inside = PurePosixPath(path).is_relative_to(PurePosixPath(target.storage.mount))
    return SharedFolder(path, "lustre" if inside else "", needed=needed)
