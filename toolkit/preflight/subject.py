"""What is checked: a planned cluster, the settings it came from, and what AWS says, seen as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from toolkit.plan.aws_facts import (
    Ami,
    Answer,
    Facts,
    FileSystem,
    Reservation,
    SecurityGroup,
    Subnet,
    Unknown,
)
from toolkit.plan.cluster import ClusterPlan
from toolkit.plan.node_software import NodeSoftware, node_software
from toolkit.preflight.problem import Level, Problem
from toolkit.settings.deployment import Deployment
from toolkit.settings.shown import cut, shown
from toolkit.settings.target import ParallelClusterTarget

T = TypeVar("T")
_UNSET = object()


class Offline(Exception):
    """Raised by what only AWS can tell when AWS is not asked; the check is then left out."""


class Unread(Exception):
    """Raised by a fact that AWS would not tell; the check becomes a warning with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Subject:
    """`document`: ParallelCluster's configuration, overrides included. `updates`: the cluster exists."""

    plan: ClusterPlan
    deployment: Deployment
    target: ParallelClusterTarget
    document: Mapping[str, Any]
    read: Facts | None
    sources: Mapping[str, str]
    updates: bool = False

    @cached_property
    def software(self) -> NodeSoftware:
        return node_software()

    @property
    def facts(self) -> Facts:
        if self.read is None:
            raise Offline
        return self.read

    @property
    def region(self) -> str:
        return self.plan.region

    def known(self, answer: Answer[T]) -> T | None:
        """The thing, or None where there is none."""
        if isinstance(answer, Unknown):
            raise Unread(answer.reason)
        return answer

    def asked(self, answers: Mapping[str, Answer[T]], name: str) -> T | None:
        """As `known`; a name that was never asked for is not taken as absent."""
        return self.known(answers.get(name, Unknown(f"{name} was not read")))

    @property
    def reservation(self) -> Reservation | None:
        name = self.plan.gpu.reservation
        return self.asked(self.facts.reservations, name) if name else None

    def subnet(self, name: str) -> Subnet | None:
        """None also for a word that stands for a subnet not made yet."""
        return self.asked(self.facts.subnets, name) if name.startswith("subnet-") else None

    @property
    def compute_subnet(self) -> Subnet | None:
        return self.subnet(self.plan.gpu.subnet)

    @property
    def head_subnet(self) -> Subnet | None:
        return self.subnet(self.plan.head.subnet)

    def security_group(self, name: str) -> SecurityGroup | None:
        return self.asked(self.facts.security_groups, name)

    @property
    def ami(self) -> Ami | None:
        """The AMI that nodes will start from, where it is there."""
        ami = self.plan.ami
        if ami is None:
            return self.known(self.facts.official)
        if ami.startswith("ami-"):
            return self.asked(self.facts.amis, ami)
        return None

    @property
    def file_system(self) -> FileSystem | None:
        name = self.plan.volume.file_system
        return self.asked(self.facts.file_systems, name) if name else None

    def error(self, key: str, reason: str, next_step: str, value: Any = _UNSET) -> Problem:
        return self._problem("error", key, reason, next_step, value)

    def warning(self, key: str, reason: str, next_step: str, value: Any = _UNSET) -> Problem:
        return self._problem("warning", key, reason, next_step, value)

    def _problem(self, level: Level, key: str, reason: str, next_step: str, value: Any) -> Problem:
        plain = self._value(key) if value is _UNSET else value
        words = cut(plain) if isinstance(plain, str) and plain.isprintable() else shown(plain)
        return Problem(level, key, words, self._source(key), reason, next_step)

    def _value(self, key: str) -> Any:
        at: Any = self.deployment.model_dump(mode="json")
        for part in key.split("."):
            at = at.get(part) if isinstance(at, dict) else None
        decided = {"target.image.name": self.plan.image, "target.version": self.plan.version}
        return decided.get(key) if at is None else at

    def _source(self, key: str) -> str:
        """A list or a section is given whole, so its source may stand at a key above."""
        while key:
            key = key.partition("[")[0] if key.endswith("]") else key
            if key in self.sources:
                return self.sources[key]
            key = key.rpartition(".")[0]
        return "default"


Check = Callable[[Subject], Iterator[Problem]]
