"""Checks of instance types, node counts and what the deployment's engines need of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from toolkit.plan.instance_type import known_instance_types
from toolkit.preflight.problem import Problem
from toolkit.preflight.subject import Check, Subject

GPU = "target.gpu.instance_type"


def type_exists(s: Subject) -> Iterator[Problem]:
    for key, name in _types(s):
        if s.asked(s.facts.instance_types, name) is None:
            near = difflib.get_close_matches(name, known_instance_types(), n=1)
            yield s.error(
                key,
                f"{s.region} has no such instance type" + (f"; did you mean {near[0]}?" if near else ""),
                f"`aws ec2 describe-instance-type-offerings --region {s.region}` lists those it has",
            )


def type_in_zone(s: Subject) -> Iterator[Problem]:
    zones = {"target.head.instance_type": s.head_subnet}
    for key, name in _types(s):
        subnet = zones.get(key, s.compute_subnet)
        offered = s.asked(s.facts.offered, name)
        if subnet and offered and subnet.zone not in offered:
            yield s.error(
                key,
                f"is not offered in {subnet.zone}, where subnet {subnet.id} is, but in "
                f"{', '.join(sorted(offered))}",
                "name a subnet in one of these zones",
            )


def has_gpus(s: Subject) -> Iterator[Problem]:
    instance = s.plan.gpu.instance
    if instance.vcpus and not instance.gpus:
        yield s.error(
            GPU,
            "has no GPU, and engines run on these nodes",
            "choose a type with GPUs, such as p5en.48xlarge",
        )


def gpus_suffice(s: Subject) -> Iterator[Problem]:
    instance = s.plan.gpu.instance
    for role in ("prefill", "decode"):
        wanted = getattr(s.deployment.legs, role).tensor_parallel
        if instance.gpus and wanted > instance.gpus:
            yield s.error(
                f"legs.{role}.tensor_parallel",
                f"needs {wanted} GPUs on one node; {instance.name} has {instance.gpus}",
                f"lower it to {instance.gpus} or less, or choose a larger target.gpu.instance_type",
            )


def nodes_suffice(s: Subject) -> Iterator[Problem]:
    legs, queue = s.deployment.legs, s.plan.gpu
    needed = legs.prefill.replicas + legs.decode.replicas
    what = f"{legs.prefill.replicas} prefill and {legs.decode.replicas} decode engines need {needed} nodes"
    if needed > queue.max_nodes:
        yield s.error(
            "target.gpu.max_nodes",
            f"{what}: jobs would wait for ever",
            f"set target.gpu.max_nodes to {needed} or more, or lower legs.*.replicas",
        )
    elif needed > queue.min_nodes:
        yield s.warning(
            "target.gpu.min_nodes",
            f"{what}; those above min_nodes start only when a job asks, and may find no capacity then",
            f"set target.gpu.min_nodes to {needed}",
        )


def router_node(s: Subject) -> Iterator[Problem]:
    if s.plan.router.min_nodes == 0:
        yield s.warning(
            "target.router.min_nodes",
            "no router node is kept up: the router's job waits minutes for one",
            "set target.router.min_nodes to 1",
        )


def gpus_where_none_run(s: Subject) -> Iterator[Problem]:
    types = known_instance_types()
    for key, name in _types(s):
        known = types.get(name)
        if key != GPU and known and known.gpus:
            yield s.warning(
                key,
                f"has {known.gpus} GPUs that nothing will use" + ", and is billed for them",
                "choose a CPU type, such as c6i.4xlarge",
            )


def efa_supported(s: Subject) -> Iterator[Problem]:
    queue = s.plan.gpu
    if queue.efa and queue.instance.vcpus and not queue.instance.efa_interfaces:
        yield s.error(
            "target.gpu.efa",
            f"{queue.instance.name} has no EFA",
            "set target.gpu.efa: false, or choose a type with EFA, such as p5en.48xlarge",
        )


def efa_used(s: Subject) -> Iterator[Problem]:
    queue = s.plan.gpu
    if not queue.efa and queue.instance.efa_interfaces:
        yield s.warning(
            "target.gpu.efa",
            f"{queue.instance.name} has {queue.instance.efa_interfaces} EFA interfaces; without them KV goes "
            "over TCP, and LIBFABRIC finds no device",
            "set target.gpu.efa: true",
        )


def backend_has_efa(s: Subject) -> Iterator[Problem]:
    queue = s.plan.gpu
    if queue.instance.vcpus and not queue.instance.efa_interfaces and "LIBFABRIC" in s.deployment.kv.backends:
        yield s.warning(
            "kv.backends",
            f"LIBFABRIC is for EFA, which {queue.instance.name} does not have",
            "set kv.backends: [UCX], or choose a type with EFA, such as p5en.48xlarge",
        )


def health_check_has_gpus(s: Subject) -> Iterator[Problem]:
    queue = s.plan.gpu
    if queue.health_check and queue.instance.vcpus and not queue.instance.gpus:
        yield s.error(
            "target.gpu.health_check",
            f"{queue.instance.name} has no GPU, so ParallelCluster's GPU check can't run on it",
            "set target.gpu.health_check: false, or choose a type with GPUs",
        )


def _types(s: Subject) -> tuple[tuple[str, str], ...]:
    return (
        ("target.head.instance_type", s.plan.head.instance_type),
        (GPU, s.plan.gpu.instance.name),
        ("target.router.instance_type", s.plan.router.instance.name),
    )


CHECKS: tuple[Check, ...] = (
    type_exists,
    type_in_zone,
    has_gpus,
    gpus_suffice,
    nodes_suffice,
    router_node,
    gpus_where_none_run,
    efa_supported,
    efa_used,
    backend_has_efa,
    health_check_has_gpus,
)
