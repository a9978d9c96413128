"""Checks of the shared volume, its mount, and the folders that must lie on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import PurePosixPath

from toolkit.plan import cluster_document as document_of
from toolkit.plan.aws_facts import SecurityGroup
from toolkit.preflight.problem import Problem
from toolkit.preflight.subject import Check, Subject
from toolkit.settings.mount import why_no_mount

VOLUME = "target.storage.file_system"
# Lustre's ports (FSx for Lustre guide, "File system access control").
LUSTRE_PORTS = ((988, 988), (1018, 1023))
LARGEST_ROOT_GB = 16384


def file_system_exists(s: Subject) -> Iterator[Problem]:
    name = s.plan.volume.file_system
    if name and s.file_system is None:
        yield s.error(
            VOLUME,
            f"there is no such file system in {s.region} of account {s.facts.account}",
            f"`aws fsx describe-file-systems --region {s.region}` lists those there are; without the setting "
            "one is made",
        )


def file_system_type(s: Subject) -> Iterator[Problem]:
    found = s.file_system
    if found and found.type != "LUSTRE":
        yield s.error(VOLUME, f"is FSx for {found.type}, not FSx for Lustre", "name an FSx for Lustre")


def file_system_state(s: Subject) -> Iterator[Problem]:
    found = s.file_system
    if found and found.lifecycle != "AVAILABLE":
        yield s.error(
            VOLUME,
            f"is {found.lifecycle}, not AVAILABLE",
            f"`aws fsx describe-file-systems --file-system-ids {found.id}` tells why; wait, or name another",
        )


def file_system_vpc(s: Subject) -> Iterator[Problem]:
    found, compute = s.file_system, s.compute_subnet
    if found and compute and found.vpc and found.vpc != compute.vpc:
        yield s.error(
            VOLUME,
            f"is in {found.vpc}, but the compute subnet is in {compute.vpc}",
            f"name a file system of {compute.vpc}",
        )


def file_system_zone(s: Subject) -> Iterator[Problem]:
    found, compute = s.file_system, s.compute_subnet
    if not found or not compute or found.vpc != compute.vpc or found.subnet == compute.id:
        return
    subnet = s.asked(s.facts.subnets, found.subnet)
    if subnet and subnet.zone != compute.zone:
        yield s.warning(
            VOLUME,
            f"is in {subnet.zone}, but the GPU nodes are in {compute.zone}: slower, and traffic between "
            "zones is billed",
            f"name a file system in {compute.zone}",
        )


def file_system_ports(s: Subject) -> Iterator[Problem]:
    found = s.file_system
    if not found or found.type != "LUSTRE":
        return
    if found.groups is None:
        yield s.warning(
            VOLUME,
            "shows no network interface, so whether nodes may reach it could not be checked",
            "see that its security group lets TCP 988 and 1018-1023 in",
        )
        return
    groups = [group for group in map(s.security_group, found.groups) if group]
    for nodes in document_of.node_groups(s.document):
        subnet = next((each for each in map(s.subnet, nodes.subnets) if each), None)
        shut = [
            f"{first}-{last}" if last > first else str(first)
            for first, last in LUSTRE_PORTS
            if subnet and not any(_reaches(nodes, subnet.cidr, group, first, last) for group in groups)
        ]
        if shut and subnet:
            yield s.error(
                VOLUME,
                f"its security group {', '.join(found.groups)} does not let TCP {' and '.join(shut)} in "
                f"from the {nodes.name} in {subnet.cidr}: the mount would hang",
                f"allow TCP 988 and 1018-1023 from {subnet.cidr} there",
            )
            return


def _reaches(nodes: document_of.NodeGroup, cidr: str, group: SecurityGroup, first: int, last: int) -> bool:
    """By address, or by a security group that the nodes are known to have."""
    return any(
        rule.covers(first, last) and (rule.reaches(cidr) or set(rule.groups) & set(nodes.security_groups))
        for rule in group.inbound
    )


def new_volume_in_one_subnet(s: Subject) -> Iterator[Problem]:
    """ParallelCluster's ManagedFsxMultiAzValidator says so in words that name one queue."""
    subnets = {
        name
        for nodes in document_of.node_groups(s.document)
        if nodes.path.startswith("Scheduling")
        for name in nodes.subnets
    }
    if s.plan.volume.file_system is None and len(subnets) > 1:
        yield s.error(
            VOLUME,
            f"a new FSx needs all queues in one subnet; they are in {', '.join(sorted(subnets))}",
            "put them into one subnet, or name an existing file system",
        )


def mounts_apart(s: Subject) -> Iterator[Problem]:
    found = list(document_of.mounts(s.document))
    for (path, folder), (other_path, other) in combinations(found, 2):
        one, two = PurePosixPath(folder), PurePosixPath(other)
        if one.is_relative_to(two) or two.is_relative_to(one):
            key = (
                "target.storage.mount" if path.startswith("SharedStorage[0]") else f"target.overrides.{path}"
            )
            yield s.error(
                key,
                f"{folder} and {other_path} = {other} lie in each other; one would hide the other",
                "give them folders apart",
                value=folder,
            )


def mounts_hide_nothing(s: Subject) -> Iterator[Problem]:
    """Those of overrides; settings refuse such a target.storage.mount themselves."""
    for path, folder in document_of.mounts(s.document):
        reason = why_no_mount(folder, of_a_disk="EphemeralVolume" in path)
        if reason:
            yield s.error(
                f"target.overrides.{path}",
                reason,
                "give it a folder of its own, such as /local",
                value=folder,
            )


def folders_are_shared(s: Subject) -> Iterator[Problem]:
    """/home is shared too: the head node exports it."""
    mount = PurePosixPath(s.plan.volume.mount)
    for key in ("runs_dir", "hf_home"):
        folder = PurePosixPath(str(getattr(s.target, key)))
        if folder.is_relative_to(mount):
            continue
        shared = folder.is_relative_to("/home")
        yield s.warning(
            f"target.{key}",
            "is on the head node's own disk, which is small and slow for all nodes"
            if shared
            else f"is not on the shared volume {mount}: nodes would not see each other's files",
            f"set target.{key} to a folder below {mount}",
        )


def root_volume_is_sold(s: Subject) -> Iterator[Problem]:
    for part in ("head", "gpu", "router"):
        size = getattr(s.plan, part).volume_gb
        if size > LARGEST_ROOT_GB:
            yield s.error(
                f"target.{part}.volume_gb",
                f"is more than the {LARGEST_ROOT_GB} GB of a gp3 volume",
                "lower it; data belongs on the shared volume",
            )


CHECKS: tuple[Check, ...] = (
    file_system_exists,
    file_system_type,
    file_system_state,
    file_system_vpc,
    file_system_zone,
    file_system_ports,
    new_volume_in_one_subnet,
    mounts_apart,
    mounts_hide_nothing,
    folders_are_shared,
    root_volume_is_sold,
)
