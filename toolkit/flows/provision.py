"""From settings to a cluster that may be made: planned, checked by us, then by pcluster; nothing is made yet.

settings -> plan -> our checks -> configuration -> pcluster's schema and dry run -> Proposal
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import yaml

from toolkit.errors import SettingsError, ToolkitError
from toolkit.plan.aws_facts import Facts, Reservation
from toolkit.plan.cluster import SUBNET_WORD, ClusterPlan, Found, parallelcluster_version, plan_cluster
from toolkit.plan.cluster_kept import keep_head
from toolkit.plan.cluster_setting import setting_of
from toolkit.plan.instance_type import known_instance_types, version_tuple
from toolkit.preflight.check import check_plan, raise_for
from toolkit.preflight.problem import Problem
from toolkit.remote.aws_facts import AwsReader
from toolkit.remote.aws_network import describe_network
from toolkit.remote.pcluster import Pcluster
from toolkit.remote.pcluster_answer import Outcome, ValidationMessage
from toolkit.remote.pcluster_env import ensure_pcluster
from toolkit.remote.pcluster_error import PclusterRefused
from toolkit.render.cluster import render_cluster
from toolkit.settings.load import Loaded
from toolkit.settings.target import ParallelClusterTarget

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Cloud:
    """A deployment's cluster on AWS, whether it exists or not. `tell` gets a line for each step."""

    loaded: Loaded
    target: ParallelClusterTarget
    tell: Progress

    @property
    def name(self) -> str:
        return self.target.cluster_name

    @property
    def region(self) -> str:
        return self.target.region

    @property
    def version(self) -> str:
        return parallelcluster_version(self.target)

    @cached_property
    def pcluster(self) -> Pcluster:
        """Of the target's version; installed first if it has to be."""
        return Pcluster(ensure_pcluster(self.version, self.tell), self.region)

    def pcluster_for(self, version: str) -> Pcluster:
        """One that can look at and delete a cluster which `version` made: an older one says of a newer
        cluster that it "belongs to an incompatible ParallelCluster major version"."""
        if not version or version_tuple(version) <= version_tuple(self.version):
            return self.pcluster
        return Pcluster(ensure_pcluster(version, self.tell), self.region)

    @property
    def static_nodes(self) -> int:
        """Compute nodes that are always up."""
        return self.target.gpu.min_nodes + self.target.router.min_nodes


@dataclass(frozen=True)
class Proposal:
    """What would be sent. `problems`: our checks' warnings; `validation`: pcluster's; `zone`: where a network
    that is still to be made goes, None where it exists."""

    plan: ClusterPlan
    config: str
    problems: tuple[Problem, ...] = ()
    validation: tuple[ValidationMessage, ...] = ()
    zone: str | None = None


def open_cloud(loaded: Loaded, tell: Progress) -> Cloud:
    """Asks nothing and nobody yet. SettingsError for a target that is no ParallelCluster."""
    target = loaded.deployment.target
    if not isinstance(target, ParallelClusterTarget):
        raise SettingsError(
            f"{loaded.file}: target.kind is {target.kind}, and this is for clusters on AWS.",
            next_step="name a deployment whose target.kind is parallelcluster, see deployments/",
        )
    return Cloud(loaded, target, tell)


def propose_offline(cloud: Cloud) -> Proposal:
    """From the settings alone, with the checks that need no AWS; errors are in `problems`, not raised."""
    plan = plan_cluster(cloud.target)
    config = render_cluster(plan)
    return Proposal(plan, config, _check(cloud, plan, config, None))


def render_with_aws(cloud: Cloud, stored: str) -> Proposal:
    """What the settings give with the ids that AWS knows, unchecked: to compare with what runs, which was
    made or last updated with `stored`."""
    plan = _plan(cloud, AwsReader(cloud.region), stored)
    return Proposal(plan, render_cluster(plan))


def propose(cloud: Cloud, *, stored: str | None = None, untouched: bool = True) -> Proposal:
    """The settings and what AWS knows of them; SettingsError lists every problem found. Makes nothing.

    `stored`: the configuration of the cluster if it exists. `untouched`: nothing was made for it yet.
    pcluster's own checks follow with `with_dry_run`.
    """
    offline = propose_offline(cloud)
    cloud.tell(f"checking the settings of cluster {cloud.name} against AWS in {cloud.region}")
    try:
        reader = AwsReader(cloud.region)
        plan = _plan(cloud, reader, stored)
        config = render_cluster(plan)
        facts = reader.facts(cloud.target, plan, yaml.safe_load(config))
    except ToolkitError:
        raise_for(offline.problems, cloud.name, untouched=untouched)
        raise
    problems = _check(cloud, plan, config, facts, updates=stored is not None)
    raise_for(problems, cloud.name, untouched=untouched)
    zone = network_zone(cloud, facts) if _lacks_network(plan) else None
    return Proposal(plan, config, problems, zone=zone)


def with_dry_run(cloud: Cloud, proposal: Proposal) -> Proposal:
    """`proposal` with what pcluster's schema and validators say of creating it; SettingsError if they refuse.

    Before the network is made there is nothing that pcluster could validate; but it must be there by then.
    """
    pcluster = cloud.pcluster
    if proposal.zone:
        return proposal
    cloud.tell(f"pcluster {pcluster.version}: validating the configuration")
    try:
        outcome = pcluster.create_cluster(cloud.name, proposal.config, dry_run=True)
    except PclusterRefused as refused:
        raise refusal(proposal.plan, refused) from refused
    return Proposal(
        proposal.plan, proposal.config, proposal.problems, told_by_pcluster(proposal.plan, outcome)
    )


def told_by_pcluster(plan: ClusterPlan, outcome: Outcome) -> tuple[ValidationMessage, ...]:
    """Its messages, but for those that miss our own script: it is sent after the confirmation."""
    ours = [script.key for script in plan.scripts if script.content is not None]
    return tuple(
        message
        for message in outcome.validation
        if message.level == "ERROR" or not any(key in message.message for key in ours)
    )


def refusal(plan: ClusterPlan, refused: PclusterRefused) -> ToolkitError:
    """A refused configuration as settings: each message with the key that it is about. What is no validation
    error, such as credentials, stays as it is."""
    errors = [each for each in refused.outcome.validation if each.level == "ERROR"]
    if not errors:
        return refused
    lines = [
        f"  {setting_of(plan, each.type, each.message) or 'target'}: {each.message} ({each.type})"
        for each in errors
    ]
    return SettingsError(
        f"pcluster {plan.version} refuses the configuration of cluster {plan.name}:\n" + "\n".join(lines),
        next_step="correct these settings; `toolkit cluster create --dry-run` prints the configuration",
    )


def network_zone(cloud: Cloud, facts: Facts) -> str:
    """The zone for a network that is made: the reservation's, else the first that has the types."""
    identity = cloud.target.capacity.reservation
    reservation = facts.reservations.get(identity) if identity else None
    if isinstance(reservation, Reservation):
        return reservation.zone
    target = cloud.target
    types = {target.head.instance_type, target.gpu.instance_type, target.router.instance_type}
    zones = _in_all(facts.offered.get(name) for name in types)
    if not zones:
        raise SettingsError(
            f"no availability zone of {cloud.region} is known to have {', '.join(sorted(types))}, "
            "so the network's zone can't be chosen.",
            next_step="make the subnets yourself and name them in target.network, or choose other types",
        )
    return min(zones)


def _in_all(answers: Iterable[object]) -> frozenset[str]:
    known = [answer for answer in answers if isinstance(answer, frozenset)]
    return frozenset.intersection(*known) if known else frozenset()


def _lacks_network(plan: ClusterPlan) -> bool:
    return any(word.startswith(SUBNET_WORD) for word in plan.unknown)


def _plan(cloud: Cloud, reader: AwsReader, stored: str | None) -> ClusterPlan:
    plan = plan_cluster(cloud.target, _found(cloud, reader))
    return keep_head(plan, yaml.safe_load(stored)) if stored else plan


def _found(cloud: Cloud, reader: AwsReader) -> Found:
    plan = plan_cluster(cloud.target)
    types = reader.instance_types((plan.head.instance_type, *(queue.instance.name for queue in plan.queues)))
    image = reader.image(plan.image, plan.version) if plan.image else None
    network = describe_network(cloud.name, cloud.region) if plan.makes_network else None
    ids = network.ids if network else None
    return Found(
        ami=image.id if image else None,
        head_subnet=ids.head_subnet if ids else None,
        compute_subnet=ids.compute_subnet if ids else None,
        instance_types={**known_instance_types(), **types},
    )


def _check(
    cloud: Cloud, plan: ClusterPlan, config: str, facts: Facts | None, *, updates: bool = False
) -> tuple[Problem, ...]:
    deployment, sources = cloud.loaded.deployment, cloud.loaded.sources
    return check_plan(plan, deployment, yaml.safe_load(config), facts, sources, updates=updates)
