"""Every check of a cluster: healthy facts are ok in all, one thing made wrong is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from toolkit.doctor.cluster_facts import CHEF, CLUSTERMGTD, EXPORTS, MOUNTS, RESUME, ClusterFacts, Missing
from toolkit.doctor.finding import Finding, Severity
from toolkit.doctor.registry import CLUSTER_CHECKS, check_cluster
from toolkit.doctor.slurm_nodes import SlurmNode, SlurmPartition
from toolkit.doctor.wanted import Wanted
from toolkit.plan.aws_side import AwsSide, InstanceSide, ReservationSide

NOW = 1_771_000_000.0
RESERVATION = "cr-0123456789abcdef0"
WANTED = Wanted(
    gpus=8, parallelcluster=True, gpu_partition="gpu", gpu_nodes=2, reservation=RESERVATION, now=NOW
)
Change = Callable[[ClusterFacts], ClusterFacts]


def node(name: str, *states: str, reason: str = "", gpus: int = 8, address: str = "") -> SlurmNode:
    partition = "gpu" if name.startswith("gpu") else "router"
    number = name.rsplit("-", 1)[-1]
    return SlurmNode(
        name,
        states or ("IDLE", "CLOUD"),
        reason,
        (partition,),
        gpus,
        address or f"10.0.1.{number}{'1' if partition == 'gpu' else '2'}",
        0,
    )


def instance(address: str, queue: str = "gpu", **values: object) -> InstanceSide:
    made = InstanceSide(
        instance_id=f"i-{address.replace('.', '')}",
        state="running",
        node_type="Compute",
        queue=queue,
        private_ip=address,
        reservation=RESERVATION if queue == "gpu" else None,
        launched_at=NOW - 7200,
    )
    return replace(made, **values)  # type: ignore[arg-type]


NODES = (node("gpu-st-p5en-1"), node("gpu-st-p5en-2"), node("router-st-c6i-1", gpus=0))
# Texts of aws-parallelcluster-node, clustermgtd.py.
CALM = (
    "2026-02-13 16:20:01,001 - [slurm_plugin.clustermgtd:manage_cluster] - INFO - "
    "Current compute fleet status: {}\n"
)
HEALTHY = ClusterFacts(
    controller="scontrol ping: UP",
    controller_up=True,
    node_list=NODES,
    partition_list=(SlurmPartition("gpu", "UP"), SlurmPartition("router", "UP")),
    files={
        CLUSTERMGTD: CALM.format("RUNNING"),
        RESUME: "",
        CHEF: "",
        EXPORTS: "/home 10.0.0.0/16(rw,sync)\n/opt/slurm 10.0.0.0/16(rw,sync)\n",
        MOUNTS: "/dev/nvme0n1p1 / ext4 rw 0 0\n10.0.1.20@tcp:/abcdefgh /fsx lustre rw,flock 0 0\n",
    },
    aws=AwsSide(
        stack_status="CREATE_COMPLETE",
        fleet_status="RUNNING",
        instances=(instance("10.0.1.11"), instance("10.0.1.21"), instance("10.0.1.12", "router")),
        reservation=ReservationSide(RESERVATION, "active", "p5en.48xlarge", "ap-south-1b", 2, 0),
    ),
)


def _nodes(*nodes: SlurmNode) -> Change:
    return lambda facts: replace(facts, node_list=nodes)


def _aws(**values: object) -> Change:
    def change(facts: ClusterFacts) -> ClusterFacts:
        assert facts.aws
        return replace(facts, aws=replace(facts.aws, **values))  # type: ignore[arg-type]

    return change


def _file(path: str, text: str) -> Change:
    return lambda facts: replace(facts, files={**facts.files, path: text})


def _reserved(**values: object) -> Change:
    assert HEALTHY.aws
    assert HEALTHY.aws.reservation
    return _aws(reservation=replace(HEALTHY.aws.reservation, **values))  # type: ignore[arg-type]


FIRST, SECOND, ROUTER = NODES
DOWN = ("DOWN", "CLOUD", "POWERED_DOWN")
ICE = "(Code:InsufficientInstanceCapacity)Temporarily disabling node due to insufficient capacity"
PROTECTED = (
    CALM.format("PROTECTED")
    + "2026-02-13 16:21:01,001 - [slurm_plugin.clustermgtd:_handle_protected_mode_process] - WARNING - "
    "Cluster is in protected mode due to failures detected in node provisioning.\n"
)

# check, what is made wrong, severity, words, other checks that see it as well
CASES: list[tuple[str, Change, Severity, str, set[str]]] = [
    (
        "slurm.head_node",
        lambda facts: replace(facts, no_head="connection refused", controller_up=False, files={}),
        Severity.ERROR,
        "connection refused",
        set(),
    ),
    (
        "slurm.controller",
        lambda facts: replace(facts, controller_up=False, controller="connect failure"),
        Severity.ERROR,
        "connect failure",
        set(),
    ),
    (
        "slurm.nodes",
        _nodes(FIRST, node("gpu-st-p5en-2", *DOWN, reason=ICE), ROUTER),
        Severity.ERROR,
        "EC2 gave no instance",
        {"slurm.enough_nodes", "capacity.reservation"},
    ),
    (
        "slurm.nodes",
        _nodes(
            FIRST,
            node(
                "gpu-st-p5en-2", *DOWN, reason="(Code:ReservationCapacityExceeded)Failure when resuming nodes"
            ),
            ROUTER,
        ),
        Severity.ERROR,
        "EC2 gave no instance",
        {"slurm.enough_nodes", "capacity.reservation"},
    ),
    (
        "slurm.nodes",
        _nodes(
            FIRST,
            node("gpu-st-p5en-2", *DOWN, reason="(Code:UnauthorizedOperation)Failure when resuming nodes"),
            ROUTER,
        ),
        Severity.ERROR,
        "EC2 refused",
        {"slurm.enough_nodes", "capacity.reservation"},
    ),
    (
        "slurm.nodes",
        _nodes(FIRST, node("gpu-st-p5en-2", *DOWN, reason="Failure when resuming nodes"), ROUTER),
        Severity.ERROR,
        "resume program",
        {"slurm.enough_nodes", "capacity.reservation"},
    ),
    (
        "slurm.nodes",
        _nodes(
            FIRST,
            node("gpu-st-p5en-2", "MIXED", "DRAIN", "CLOUD", reason="Node failing ec2_health_check"),
            ROUTER,
        ),
        Severity.ERROR,
        "EC2's status checks",
        {"slurm.enough_nodes", "capacity.reservation"},
    ),
    (
        "slurm.nodes",
        _nodes(
            FIRST,
            node(
                "gpu-st-p5en-2",
                "DOWN",
                "CLOUD",
                "INVALID_REG",
                reason="gres/gpu count reported lower than configured (0 < 8)",
            ),
            ROUTER,
        ),
        Severity.ERROR,
        "less than slurm.conf says",
        {"slurm.enough_nodes", "capacity.reservation"},
    ),
    (
        "slurm.nodes",
        _nodes(FIRST, node("gpu-st-p5en-2", "DOWN", "NOT_RESPONDING"), ROUTER),
        Severity.ERROR,
        "slurmd on the node is gone",
        {"slurm.enough_nodes", "capacity.reservation"},
    ),
    (
        "slurm.nodes",
        _nodes(*NODES, node("gpu-st-p5en-3", "IDLE", "DRAIN", reason="new fans [admin@2026-02-13T16:00:00]")),
        Severity.WARNING,
        "out of service",
        set(),
    ),
    (
        "slurm.partitions",
        lambda facts: replace(
            facts, partition_list=(SlurmPartition("gpu", "INACTIVE"), SlurmPartition("router", "UP"))
        ),
        Severity.ERROR,
        "gpu: INACTIVE",
        set(),
    ),
    (
        "slurm.gpus",
        _nodes(FIRST, node("gpu-st-p5en-2", gpus=4), ROUTER),
        Severity.ERROR,
        "gpu-st-p5en-2: 4 GPUs",
        set(),
    ),
    (
        "slurm.enough_nodes",
        lambda facts: _aws(instances=(instance("10.0.1.11"), instance("10.0.1.12", "router")))(
            _reserved(available=1)(_nodes(FIRST, ROUTER)(facts))
        ),
        Severity.ERROR,
        "1 fit nodes in gpu, the deployment needs 2",
        set(),
    ),
    (
        "slurm.logs",
        _file(
            RESUME,
            "2026-02-13 16:21:01 - ERROR - Failed to launch instances: InsufficientInstanceCapacity\n",
        ),
        Severity.WARNING,
        RESUME,
        set(),
    ),
    (
        "slurm.logs",
        _file(
            CHEF,
            "fetch_and_run - Failed to execute OnNodeConfigured script 1 s3://b/check.sh, return code: 2\n",
        ),
        Severity.WARNING,
        "return code: 2",
        set(),
    ),
    ("slurm.mounts", _file(EXPORTS, "/home 10.0.0.0/16(rw)\n"), Severity.ERROR, "/opt/slurm", set()),
    ("capacity.fleet", _aws(fleet_status="PROTECTED"), Severity.ERROR, "PROTECTED mode", set()),
    (
        "capacity.fleet",
        lambda facts: _aws(fleet_status=None)(_file(CLUSTERMGTD, PROTECTED)(facts)),
        Severity.ERROR,
        "Cluster is in protected mode",
        set(),
    ),
    ("capacity.fleet", _aws(fleet_status="STOPPED"), Severity.ERROR, "STOPPED", set()),
    (
        "capacity.stack",
        _aws(stack_status="UPDATE_ROLLBACK_COMPLETE"),
        Severity.ERROR,
        "UPDATE_ROLLBACK_COMPLETE",
        set(),
    ),
    (
        "capacity.stack",
        _aws(stack_status="UPDATE_IN_PROGRESS"),
        Severity.WARNING,
        "UPDATE_IN_PROGRESS",
        set(),
    ),
    (
        "capacity.instances",
        _aws(
            instances=(
                instance("10.0.1.11"),
                instance("10.0.1.21", state="shutting-down"),
                instance("10.0.1.12", "router"),
            )
        ),
        Severity.ERROR,
        "gpu-st-p5en-2",
        set(),
    ),
    (
        "capacity.powering_up",
        lambda facts: _aws(instances=(instance("10.0.1.11"), instance("10.0.1.12", "router")))(
            _nodes(FIRST, node("gpu-st-p5en-2", "IDLE", "CLOUD", "POWERING_UP"), ROUTER)(facts)
        ),
        Severity.ERROR,
        "no instance",
        set(),
    ),
    (
        "capacity.powering_up",
        _nodes(FIRST, node("gpu-st-p5en-2", "ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING"), ROUTER),
        Severity.ERROR,
        "for 120 min",
        set(),
    ),
    ("capacity.reservation", _reserved(state="expired"), Severity.ERROR, "is expired", set()),
    ("capacity.reservation", _reserved(ends_at=NOW + 3600), Severity.WARNING, "ends in 1.0 h", set()),
    (
        "capacity.members",
        _aws(
            instances=(
                instance("10.0.1.11"),
                instance("10.0.1.21", reservation=None),
                instance("10.0.1.12", "router"),
            )
        ),
        Severity.ERROR,
        "no reservation",
        set(),
    ),
]


def faults(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is not Severity.OK]


def test_a_healthy_cluster_is_ok_in_every_check() -> None:
    findings = check_cluster(HEALTHY, WANTED)
    assert faults(findings) == []
    assert {finding.check for finding in findings} == {check.name for check in CLUSTER_CHECKS}


@pytest.mark.parametrize(
    ("check", "change", "severity", "words", "also"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)]
)
def test_one_fault_is_found(
    check: str, change: Change, severity: Severity, words: str, also: set[str]
) -> None:
    found = faults(check_cluster(change(HEALTHY), WANTED))
    assert {finding.check for finding in found} == {check} | also
    fault = next(finding for finding in found if finding.check == check)
    assert fault.severity is severity
    assert words in "\n".join((fault.symptom, *fault.evidence, fault.cause))
    assert all((fault.evidence, fault.cause, fault.next_step, fault.source))


def test_no_check_is_untested() -> None:
    assert {case[0] for case in CASES} == {check.name for check in CLUSTER_CHECKS}


def test_without_aws_its_checks_are_unknown_but_for_what_the_log_tells() -> None:
    found = {f.check: f.severity for f in check_cluster(replace(HEALTHY, aws=None), WANTED)}
    unknown = {check for check, severity in found.items() if severity is Severity.UNKNOWN}
    assert unknown == {"capacity.stack", "capacity.instances", "capacity.reservation", "capacity.members"}
    assert found["capacity.fleet"] is Severity.OK


def test_what_could_not_be_read_is_unknown() -> None:
    gone = Missing("sinfo: timed out")
    facts = replace(HEALTHY, node_list=gone, partition_list=gone, files={}, aws=None)
    found = {f.check: f for f in check_cluster(facts, WANTED)}
    assert all(found.pop(name).severity is Severity.OK for name in ("slurm.head_node", "slurm.controller"))
    assert {f.severity for f in found.values()} == {Severity.UNKNOWN}
    assert "sinfo: timed out" in found["slurm.nodes"].symptom


def test_an_embedded_cluster_is_not_asked_for_aws() -> None:
    wanted = Wanted(gpus=8, gpu_partition="gpu", gpu_nodes=2, now=NOW)
    names = {f.check for f in check_cluster(replace(HEALTHY, aws=None, files={}), wanted)}
    assert names == {
        "slurm.head_node",
        "slurm.controller",
        "slurm.nodes",
        "slurm.partitions",
        "slurm.gpus",
        "slurm.enough_nodes",
    }


def test_the_reservation_is_judged_though_the_nodes_are_not_read() -> None:
    """AWS answers while the head node can't be reached."""
    unread = Missing("the head node was not reached")
    facts = replace(HEALTHY, no_head="connection refused", controller_up=False, node_list=unread)
    (found,) = [f for f in check_cluster(facts, WANTED) if f.check == "capacity.reservation"]
    assert found.severity is Severity.OK
    assert "not known" in found.symptom
