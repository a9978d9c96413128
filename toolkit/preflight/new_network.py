"""Checks of target.network.create: what can never be in a network that is still to be made.

pcluster can validate such a cluster only when its VPC and NAT gateway stand and are billed.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.plan.cluster import SUBNET_WORD
from toolkit.preflight.problem import Problem
from toolkit.preflight.subject import Check, Subject


def new_network_has_no_file_system(s: Subject) -> Iterator[Problem]:
    if _to_be_made(s) and s.plan.volume.file_system:
        yield s.error(
            "target.storage.file_system",
            "an existing file system can't be in the VPC that target.network.create makes",
            "name subnets of the file system's VPC in target.network, or leave the file system out: a new "
            "one is made",
        )


def new_network_has_no_groups(s: Subject) -> Iterator[Problem]:
    if _to_be_made(s) and s.target.network.security_groups:
        yield s.error(
            "target.network.security_groups",
            "existing security groups can't be in the VPC that target.network.create makes",
            "leave them out: ParallelCluster makes the nodes' own; or name subnets of the groups' VPC",
        )


def types_in_new_network(s: Subject) -> Iterator[Problem]:
    """Without a reservation the network goes to a zone that has every type."""
    reservation = s.reservation if _to_be_made(s) else None
    if not reservation:
        return
    for key, name in (
        ("target.head.instance_type", s.plan.head.instance_type),
        ("target.gpu.instance_type", s.plan.gpu.instance.name),
        ("target.router.instance_type", s.plan.router.instance.name),
    ):
        offered = s.asked(s.facts.offered, name)
        if offered and reservation.zone not in offered:
            yield s.error(
                key,
                f"is not offered in {reservation.zone}, where reservation {reservation.id} is and the "
                f"network would be made, but in {', '.join(sorted(offered))}",
                f"choose a type that {reservation.zone} has",
            )


def _to_be_made(s: Subject) -> bool:
    """Only AWS tells: in a network that an earlier cluster left, its file system can be used again."""
    return s.facts is not None and any(word.startswith(SUBNET_WORD) for word in s.plan.unknown)


CHECKS: tuple[Check, ...] = (
    new_network_has_no_file_system,
    new_network_has_no_groups,
    types_in_new_network,
)
