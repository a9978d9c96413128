"""Every check there is, in the order of the report."""

from __future__ import annotations

from toolkit.doctor import (
    checks_capacity,
    checks_driver,
    checks_efa,
    checks_kernel,
    checks_nixl,
    checks_slurm,
    checks_system,
)
from toolkit.doctor.check import Check, run_checks
from toolkit.doctor.cluster_facts import ClusterFacts
from toolkit.doctor.engine_facts import EngineFacts
from toolkit.doctor.finding import Finding
from toolkit.doctor.node_facts import NodeFacts
from toolkit.doctor.wanted import Wanted

NODE_CHECKS: tuple[Check[NodeFacts], ...] = (
    *checks_driver.CHECKS,
    *checks_kernel.CHECKS,
    *checks_efa.CHECKS,
    *checks_system.CHECKS,
)
ENGINE_CHECKS: tuple[Check[EngineFacts], ...] = checks_nixl.CHECKS
CLUSTER_CHECKS: tuple[Check[ClusterFacts], ...] = (*checks_slurm.CHECKS, *checks_capacity.CHECKS)


def check_node(facts: NodeFacts, wanted: Wanted) -> list[Finding]:
    """Of a node that could not be probed only that is told."""
    if facts.unreached:
        return run_checks((checks_system.REACHED,), facts, wanted)
    return run_checks(NODE_CHECKS, facts, wanted)


def check_engine(facts: EngineFacts, wanted: Wanted) -> list[Finding]:
    return run_checks(ENGINE_CHECKS, facts, wanted)


def check_cluster(facts: ClusterFacts, wanted: Wanted) -> list[Finding]:
    return run_checks(CLUSTER_CHECKS, facts, wanted)


def table() -> str:
    """All checks as Markdown, for docs/doctor.md."""
    rows = ["| check | asked by | looks at | source |", "|---|---|---|---|"]
    groups = (
        ("node", (checks_system.REACHED, *NODE_CHECKS)),
        ("node", ENGINE_CHECKS),
        ("cluster", CLUSTER_CHECKS),
    )
    for verb, checks in groups:
        rows += [f"| `{c.name}` | `doctor {verb}` | {c.looks_at} | {c.source} |" for c in checks]
    return "\n".join(rows) + "\n"
