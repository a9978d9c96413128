"""Whether a cluster was made from a target: by what names it in an account, its stored configuration. Pure.

Its name does not tell: anybody may have made a cluster of that name. What two deployments may share (they are
then served by one cluster) or an update may change is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.plan import cluster_document as document_of
from toolkit.settings.target import ParallelClusterTarget


def differences(
    target: ParallelClusterTarget, stored: Mapping[str, Any], own_subnets: tuple[str, str] | None = None
) -> tuple[str, ...]:
    """What shows that the cluster is another target's, a line each. `own_subnets`: of head and compute nodes
    in the network that the toolkit made; None where it is not known. What the settings leave open is no
    difference."""
    return tuple(
        f"{key}: the cluster has {has or 'none'}, these settings {wants or 'none'}"
        for key, has, wants in _pairs(target, stored, own_subnets)
        if has != wants
    )


def _pairs(
    target: ParallelClusterTarget, stored: Mapping[str, Any], own_subnets: tuple[str, str] | None
) -> Iterator[tuple[str, str, str]]:
    head, *queues = document_of.node_groups(stored)
    network = target.network
    named = (network.head_subnet, network.compute_subnet)
    head_subnet, compute_subnet = own_subnets or named if network.create else named
    if head_subnet:
        yield "target.network.head_subnet", ", ".join(head.subnets), head_subnet
    if compute_subnet:
        used = {name for each in queues if each.path.startswith("Scheduling") for name in each.subnets}
        yield "target.network.compute_subnet", ", ".join(sorted(used)), compute_subnet
    reservation = target.capacity.reservation
    if reservation or target.capacity.kind in ("on-demand", "spot"):
        used = set(_reservations(queues))
        yield "target.capacity.reservation", ", ".join(sorted(used)), reservation or ""
    tags = {str(each.get("Key")): str(each.get("Value")) for each in document_of.items(stored, "Tags")}
    yield "target.tags", _words(tags), _words({key: str(value) for key, value in target.tags.items()})


def _reservations(queues: list[document_of.NodeGroup]) -> Iterator[str]:
    for queue in queues:
        for resource in (queue.section, *document_of.items(queue.section, "ComputeResources")):
            identity = document_of.section(resource, "CapacityReservationTarget").get("CapacityReservationId")
            if identity:
                yield str(identity)


def _words(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={tags[key]}" for key in sorted(tags))
