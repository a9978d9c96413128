"""What was read of a cluster as a whole: Slurm's view, files of its head node, AWS's view. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from toolkit.doctor.finding import Unread
from toolkit.doctor.slurm_nodes import SlurmNode, SlurmPartition
from toolkit.plan.aws_side import AwsSide, InstanceSide, ReservationSide

T = TypeVar("T")

CLUSTERMGTD = "/var/log/parallelcluster/clustermgtd"
RESUME = "/var/log/parallelcluster/slurm_resume.log"
CHEF = "/var/log/chef-client.log"
EXPORTS = "/etc/exports"
MOUNTS = "/proc/mounts"
HEAD_FILES = (CLUSTERMGTD, RESUME, CHEF, EXPORTS, MOUNTS)


@dataclass(frozen=True)
class Missing:
    """Something that could not be read, and why."""

    why: str


@dataclass(frozen=True)
class ClusterFacts:
    """`controller`: what `scontrol ping` said. `files`: ends of the head node's files by path.

    `no_head`: why the head node can't be reached; nothing but `aws` is known then.
    """

    controller: str
    controller_up: bool
    node_list: tuple[SlurmNode, ...] | Missing
    partition_list: tuple[SlurmPartition, ...] | Missing
    files: Mapping[str, str | Missing] = field(default_factory=dict)
    aws: AwsSide | None = None
    no_head: str = ""

    @property
    def nodes(self) -> tuple[SlurmNode, ...]:
        return _had(self.node_list)

    @property
    def partitions(self) -> tuple[SlurmPartition, ...]:
        return _had(self.partition_list)

    def file(self, path: str) -> str:
        return _had(self.files.get(path, Missing(f"{path} was not read")))

    @property
    def fleet_status(self) -> str:
        return self._from_aws("the compute fleet's status", self.aws.fleet_status if self.aws else None)

    @property
    def stack_status(self) -> str:
        return self._from_aws("the stack's status", self.aws.stack_status if self.aws else None)

    @property
    def instances(self) -> tuple[InstanceSide, ...]:
        return self._from_aws("the cluster's instances", self.aws.instances if self.aws else None)

    @property
    def reservation(self) -> ReservationSide:
        return self._from_aws("the capacity reservation", self.aws.reservation if self.aws else None)

    def _from_aws(self, what: str, value: T | None) -> T:
        if value is None:
            raise Unread(f"AWS was not asked for {what}, or did not answer")
        return value


def _had(value: T | Missing) -> T:
    if isinstance(value, Missing):
        raise Unread(value.why)
    return value
