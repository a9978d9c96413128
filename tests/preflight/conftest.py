"""A planned cluster and an account in which all that it names is right; cases then spoil one thing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolkit.plan import cluster_document as document_of
from toolkit.plan.aws_facts import (
    Ami,
    Bucket,
    Facts,
    FileSystem,
    Forbidden,
    KeyPair,
    PlacementGroup,
    Quota,
    Reservation,
    Rule,
    SecurityGroup,
    Subnet,
    Unknown,
    Vpc,
    quota_code,
)
from toolkit.plan.cluster import ClusterPlan, Found, plan_cluster
from toolkit.plan.node_software import node_software
from toolkit.preflight.check import check_plan
from toolkit.preflight.problem import Problem
from toolkit.render.cluster import render_cluster
from toolkit.settings.load import Loaded, load
from toolkit.settings.target import ParallelClusterTarget

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ZONE, VPC = "ap-south-1b", "vpc-0123456789abcdef0"
AMI = "ami-0123456789abcdef0"
EVERYTHING = Rule("-1", None, None, networks=("0.0.0.0/0",))


@dataclass(frozen=True)
class Case:
    """A mistake: settings and facts that make it, and what must be said of it.

    `settings`: as given to --set. `facts`: what is changed in a right account, see `changed`. `document`:
    values laid into the final configuration, by path. `refused`: the settings themselves do not load.
    """

    id: str
    mistake: str
    level: str
    key: str
    reason: str
    next: str
    settings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)
    offline: bool = False
    refused: bool = False


def right_ami(plan: ClusterPlan) -> Ami:
    software = node_software()
    tags = {
        "version": plan.version,
        "os": plan.os,
        "nvidia_version": software.nvidia_driver,
        "cuda_version": f"{software.cuda}.2",
        "efa_version": "3.3.0-1.amzn1",
        "kernel_version": software.kernel,
    }
    return Ami(
        id=plan.ami or AMI,
        name=plan.image or "mine",
        owner="123456789012",
        owner_alias=None,
        state="available",
        architecture="x86_64",
        volume_gb=60,
        tags={f"parallelcluster:{name}": value for name, value in tags.items()},
    )


def right_group(name: str) -> SecurityGroup:
    """Rules that hold two groups each, as they may (aws/aws-parallelcluster#3590)."""
    within = Rule("-1", None, None, groups=("sg-0fedcba9876543210", name))
    return SecurityGroup(name, VPC, (within,), (within, EVERYTHING))


def right_subnet(name: str, plan: ClusterPlan) -> Subnet:
    public = name == plan.head.subnet
    return Subnet(
        id=name,
        zone=ZONE,
        zone_id="aps1-az3",
        vpc=VPC,
        cidr="10.0.0.0/24" if public else "10.0.16.0/20",
        free=250 if public else 4089,
        public_addresses=public,
        route="igw" if public else "nat",
    )


def right_facts(plan: ClusterPlan, target: ParallelClusterTarget, document: Mapping[str, Any]) -> Facts:
    gpu, volume = plan.gpu, plan.volume.file_system
    types = {plan.head.instance_type, gpu.instance.name, plan.router.instance.name}
    reservation = Reservation(
        id=gpu.reservation or "",
        instance_type=gpu.instance.name,
        zone=ZONE,
        state="active",
        total=max(2, gpu.max_nodes),
        available=max(2, gpu.max_nodes),
        kind="capacity-block" if target.capacity.kind == "capacity-block" else "default",
        placement_group=gpu.placement_group and f"arn:aws:ec2:::placement-group/{gpu.placement_group}",
    )
    lustre = tuple(Rule("tcp", *ports, networks=("10.0.0.0/16",)) for ports in ((988, 988), (1018, 1023)))
    groups = {name: right_group(name) for name in document_of.security_groups(document)}
    codes = {quota_code(name, spot=spot) for name in types for spot in (False, True)}
    urls = document_of.scripts(document)
    buckets = {place[0] for place in map(document_of.bucket_and_key, urls) if place} | {target.bucket or ""}
    return Facts(
        now=NOW,
        region=plan.region,
        account="123456789012",
        subnets={name: right_subnet(name, plan) for name in document_of.subnets(document)},
        vpcs={VPC: Vpc(VPC, dns_support=True, dns_hostnames=True)},
        reservations={gpu.reservation: reservation} if gpu.reservation else {},
        placement_groups={gpu.placement_group: PlacementGroup(gpu.placement_group, "cluster", "available")}
        if gpu.placement_group
        else {},
        keys={plan.head.key_name: KeyPair(plan.head.key_name, "ed25519")},
        security_groups={**groups, "sg-lustre": SecurityGroup("sg-lustre", VPC, lustre, (EVERYTHING,))},
        amis={plan.ami: right_ami(plan)} if plan.ami else {},
        images={plan.image: right_ami(plan)} if plan.image else {},
        official=right_official(plan),
        file_systems={volume: FileSystem(volume, "LUSTRE", VPC, gpu.subnet, "AVAILABLE", ("sg-lustre",))}
        if volume
        else {},
        buckets={name: Bucket(name, plan.region) for name in buckets if name},
        objects=dict.fromkeys(urls, True),
        instance_types=dict.fromkeys(types, "x86_64"),
        offered=dict.fromkeys(types, frozenset({"ap-south-1a", ZONE})),
        quotas={code: Quota(code, "Running instances", 10_000) for code in codes if code},
        vpc_count=1,
    )


def right_official(plan: ClusterPlan) -> Ami:
    name = f"aws-parallelcluster-{plan.version}-ubuntu-2404-lts-hvm-x86_64-202602121713"
    return Ami("ami-0fffffffffffffff0", name, "247102896272", "amazon", "available", "x86_64", 45)


def changed(facts: Facts, changes: Mapping[str, Any], plan: ClusterPlan) -> Facts:
    """`reservations: {state: expired}` changes every reservation, `reservations: null` takes them away; see
    `_spoiled`. `subnets.head` and `subnets.compute` name one of them, other words an item's name."""
    for path, change in changes.items():
        kind, _, which = path.partition(".")
        now = getattr(facts, kind)
        if not isinstance(now, dict):
            facts = replace(facts, **{kind: _spoiled(now, change)})
            continue
        named = {"head": plan.head.subnet, "compute": plan.gpu.subnet}.get(which, which)
        new = {name: _spoiled(value, change) if named in ("", name) else value for name, value in now.items()}
        facts = replace(facts, **{kind: new})
    return facts


def _spoiled(value: Any, change: Any) -> Any:
    """`{unread: reason}`, `{forbidden: name}`, `{is: another value}`, else the fields that change."""
    if change is None:
        return None
    if "unread" in change:
        return Unknown(change["unread"])
    if "forbidden" in change:
        return Forbidden(change["forbidden"])
    if "is" in change:
        return frozenset(change["is"]) if isinstance(change["is"], list) else change["is"]
    fields = {name: _field(value, name, new) for name, new in change.items()}
    return replace(value, **fields)


def _field(value: Any, name: str, new: Any) -> Any:
    if name in ("starts", "ends"):
        return NOW + timedelta(hours=new)
    if name == "tags":
        tags = {**value.tags, **{f"parallelcluster:{tag}": text for tag, text in new.items()}}
        return {tag: text for tag, text in tags.items() if text is not None}
    if name in ("inbound", "outbound"):
        return tuple(
            Rule(
                **{
                    **rule,
                    "groups": tuple(rule.get("groups", ())),
                    "networks": tuple(rule.get("networks", ())),
                }
            )
            for rule in new
        )
    if name == "endpoints":
        return frozenset(new)
    return tuple(new) if isinstance(new, list) else new


def laid(document: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The document with `values` at their dotted paths; a number steps into a list."""
    for path, value in values.items():
        *parents, last = path.split(".")
        at: Any = document
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        at[last] = value
    return document


def loaded(*assignments: str) -> Loaded:
    return load(ROOT / "deployments" / "qwen3-32b-p5en.yaml", assignments)


@cache
def planned(settings: tuple[str, ...], *, built: bool) -> tuple[Loaded, ClusterPlan, dict[str, Any]]:
    """Settings, plan and configuration; many cases share them and differ in the account only."""
    given = loaded(*settings)
    target = cluster_of(given)
    ami = target.image.ami or (AMI if built and not target.image.official else None)
    plan = plan_cluster(target, Found(ami=ami))
    return given, plan, yaml.load(render_cluster(plan), Loader=yaml.CSafeLoader)


def cluster_of(given: Loaded) -> ParallelClusterTarget:
    target = given.deployment.target
    assert isinstance(target, ParallelClusterTarget)
    return target


def problems_of(case: Case, *, updates: bool = False) -> tuple[Problem, ...]:
    """What the checks say of a case's settings and facts."""
    given, plan, rendered = planned(case.settings, built=case.facts.get("images", ...) is not None)
    document = laid(copy.deepcopy(rendered), case.document)
    facts = None
    if not case.offline:
        facts = changed(right_facts(plan, cluster_of(given), document), case.facts, plan)
    return check_plan(plan, given.deployment, document, facts, given.sources, updates=updates)


@cache
def all_cases() -> list[Case]:
    cases = []
    for path in sorted(Path(__file__).parent.glob("cases/*.yaml")):
        for name, values in yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader).items():
            cases.append(
                Case(id=f"{path.stem}: {name}", **{**values, "settings": tuple(values.get("settings", ()))})
            )
    return cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = all_cases()
        metafunc.parametrize("case", cases, ids=[case.id for case in cases])


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    return all_cases()


@pytest.fixture(scope="session")
def problems() -> Callable[[Case], tuple[Problem, ...]]:
    return problems_of


@pytest.fixture(scope="session")
def updating() -> Callable[[Case], tuple[Problem, ...]]:
    return partial(problems_of, updates=True)


@pytest.fixture(scope="session")
def settings() -> Callable[..., Loaded]:
    """The published deployment, with settings changed as by --set."""
    return loaded


@pytest.fixture(scope="session")
def make_case() -> Callable[..., Case]:
    """A case that is no mistake of the table."""

    def make(*settings: str, **values: Any) -> Case:
        return Case("", "", "", "", "", "", settings=settings, **values)

    return make
