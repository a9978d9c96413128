"""What overrides of ParallelCluster's configuration may not touch: what the toolkit's own settings decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Every value that pcluster-config/cluster.yaml.j2 sets, by its path or a section above it; a test holds the
# two together. But for the lists of JOINED: items that overrides give are added to ours.
OWNED = (
    *("Region", "Image", "Tags", "SharedStorage", "Imds.ImdsSupport"),
    *("HeadNode.InstanceType", "HeadNode.Networking.SubnetId"),
    # It would take the place of ParallelCluster's group, which holds ssh.allowed_from and lets the nodes in.
    "HeadNode.Networking.SecurityGroups",
    *("HeadNode.Ssh.KeyName", "HeadNode.Ssh.AllowedIps"),
    *(f"HeadNode.LocalStorage.RootVolume.{key}" for key in ("Size", "VolumeType", "Encrypted")),
    *("HeadNode.Imds.Secured", "HeadNode.CustomActions"),
    *("Scheduling.Scheduler", "Scheduling.SlurmSettings.QueueUpdateStrategy", "Scheduling.SlurmQueues"),
    *(f"Monitoring.Logs.CloudWatch.{key}" for key in ("Enabled", "RetentionInDays", "DeletionPolicy")),
    "Monitoring.Dashboards.CloudWatch.Enabled",
)
JOINED = ("HeadNode.Iam.AdditionalIamPolicies", "HeadNode.Iam.S3Access")


def owned_override(overrides: Mapping[str, Any]) -> str | None:
    """The first path of the configuration that `overrides` would take from the settings."""
    for path in (*OWNED, *JOINED):
        given, value = _value_over(overrides, path)
        if given and not (path in JOINED and isinstance(value, list)):
            return path
    return None


def _value_over(overrides: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    """(True, what would stand at `path`): what is given there, or nothing where a section above it is given
    as no section, null too, which would take the place of all below it."""
    at: Any = overrides
    for part in path.split("."):
        if not isinstance(at, Mapping):
            return True, None
        if part not in at:
            return False, None
        at = at[part]
    return True, at
