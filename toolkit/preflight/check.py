"""The one list of checks, and their run over a planned cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolkit.errors import SettingsError
from toolkit.plan.aws_facts import Facts
from toolkit.plan.cluster import ClusterPlan
from toolkit.preflight import (
    access,
    capacity,
    document,
    image,
    network,
    new_network,
    nodes,
    scripts,
    storage,
)
from toolkit.preflight.problem import Problem
from toolkit.preflight.subject import Check, Offline, Subject, Unread
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import ParallelClusterTarget

CHECKS: tuple[Check, ...] = (
    *document.CHECKS,
    *access.CHECKS,
    *capacity.CHECKS,
    *network.CHECKS,
    *new_network.CHECKS,
    *nodes.CHECKS,
    *image.CHECKS,
    *storage.CHECKS,
    *scripts.CHECKS,
)


def check_name(check: Check) -> str:
    return check.__name__.replace("_", "-")


def check_plan(
    plan: ClusterPlan,
    deployment: Deployment,
    document: Mapping[str, Any],
    facts: Facts | None,
    sources: Mapping[str, str],
    *,
    updates: bool = False,
) -> tuple[Problem, ...]:
    """Everything wrong or doubtful, errors first, each once.

    `document`: ParallelCluster's parsed configuration. `facts` None: AWS is not asked, and checks that need
    it are left out. `sources`: dotted key -> where its value came from. `updates`: the cluster exists, so its
    name is taken and its own nodes hold addresses and reserved places. What AWS refuses to tell is a warning
    that names the checks not made.
    """
    target = deployment.target
    if not isinstance(target, ParallelClusterTarget):
        raise SettingsError(f"target.kind {target.kind} is no cluster on AWS", next_step="name another file")
    subject = Subject(plan, deployment, target, document, facts, sources, updates)
    found: list[Problem] = []
    unread: dict[str, list[str]] = {}
    for check in CHECKS:
        try:
            for problem in check(subject):
                found.append(replace(problem, check=check_name(check)))
        except Offline:
            continue
        except Unread as missing:
            unread.setdefault(missing.reason, []).append(check_name(check))
    found += [_not_checked(reason, names) for reason, names in unread.items()]
    return tuple(sorted(dict.fromkeys(found), key=lambda problem: not problem.is_error))


def raise_for(problems: Sequence[Problem], cluster: str, *, untouched: bool = True) -> None:
    """SettingsError that lists the errors among `problems`, if there are any. `untouched`: nothing was made
    before these checks; else who made it says so."""
    errors = [problem for problem in problems if problem.is_error]
    if not errors:
        return
    what = "1 thing is" if len(errors) == 1 else f"{len(errors)} things are"
    lines = "\n".join(f"  {line}" for problem in errors for line in str(problem).splitlines())
    so = ", so nothing was made or changed" if untouched else ""
    raise SettingsError(
        f"{what} wrong with cluster {cluster}{so}:\n{lines}",
        next_step="correct these, then again",
    )


def _not_checked(reason: str, names: Sequence[str]) -> Problem:
    return Problem(
        level="warning",
        key="",
        value="",
        where="",
        reason=f"could not be checked: {', '.join(names)}, because {reason}",
        next_step="see these by eye, or use credentials that may read them",
        check="not-checked",
    )
