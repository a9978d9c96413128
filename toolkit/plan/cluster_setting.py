"""Which setting a message of pcluster's validators is about. Pure.

A message names a path of ParallelCluster's configuration, a value, or only a validator's class; the user
wrote none of them, so the setting that they come from is told beside it.
"""

from __future__ import annotations

import re

from toolkit.plan.cluster import ClusterPlan

# First match wins: paths of the configuration, then classes of validators (aws-parallelcluster 3.14.2 and
# 3.16.1, pcluster/validators).
_SETTINGS = (
    (r"HeadNode\W+.*InstanceType|HeadNodeImdsValidator", "target.head.instance_type"),
    (r"HeadNode\W+.*KeyName|KeyPairValidator", "target.ssh.key_name"),
    (r"KeyName", "target.ssh.key_name"),
    (r"CapacityReservation|CapacityBlock", "target.capacity.reservation"),
    (r"CapacityType", "target.capacity.kind"),
    (r"PlacementGroup", "target.capacity.placement_group"),
    (r"SecurityGroup", "target.network.security_groups"),
    (r"Efa", "target.gpu.efa"),
    (r"CustomAmi|AMI|[Ii]mage", "target.image"),
    (r"Fsx|FileSystem|SharedStorage|MountDir|SharedStorageNameValidator", "target.storage"),
    (r"OnNode|CustomActions|UrlValidator|Script", "target.scripts"),
    (r"Tag", "target.tags"),
    (r"Subnet|Vpc|PublicIp|Networking", "target.network"),
    (r"HealthCheck", "target.gpu.health_check"),
)


def setting_of(plan: ClusterPlan, kind: str, message: str) -> str | None:
    """The dotted key whose value a message of validator `kind` is about; None where it can't be told."""
    for value, setting in _values(plan):
        if value and re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w-])", message):
            return setting
    text = f"{kind} {message}"
    return next((setting for pattern, setting in _SETTINGS if re.search(pattern, text)), None)


def _values(plan: ClusterPlan) -> list[tuple[str | None, str]]:
    """Values of which the settings hold each in one place only, the most telling ones first."""
    gpu = plan.gpu
    values: list[tuple[str | None, str]] = [
        (gpu.reservation, "target.capacity.reservation"),
        (plan.head.key_name, "target.ssh.key_name"),
        (plan.volume.file_system, "target.storage.file_system"),
        (plan.ami, "target.image.ami"),
        *((group, "target.network.security_groups") for group in gpu.security_groups),
        *((script.url, "target.scripts") for script in plan.scripts if script.content is None),
    ]
    if plan.head.subnet != gpu.subnet:
        values += [
            (plan.head.subnet, "target.network.head_subnet"),
            (gpu.subnet, "target.network.compute_subnet"),
        ]
    types = [plan.head.instance_type, gpu.instance.name, plan.router.instance.name]
    keys = ("target.head.instance_type", "target.gpu.instance_type", "target.router.instance_type")
    once = [(name, key) for name, key in zip(types, keys, strict=True) if types.count(name) == 1]
    return [*values, *once]
