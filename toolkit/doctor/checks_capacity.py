"""What AWS gives the cluster: fleet and stack status, instances behind nodes, the capacity reservation."""

from __future__ import annotations

import re

from toolkit.doctor.check import Check
from toolkit.doctor.checks_slurm import on_parallelcluster
from toolkit.doctor.cluster_facts import CLUSTERMGTD, ClusterFacts, Missing
from toolkit.doctor.finding import Unread, Verdict, error, ok, warning
from toolkit.doctor.log_patterns import NODE_DAEMON, TROUBLESHOOTING
from toolkit.doctor.slurm_nodes import SlurmNode
from toolkit.doctor.wanted import Wanted
from toolkit.plan.aws_side import InstanceSide

BOOTSTRAP_SECONDS = 2100  # ParallelCluster 3.14.2: DevSettings/Timeouts/ComputeNodeBootstrapTimeout
SOON_SECONDS = 24 * 3600
LIVE = ("pending", "running")
ODCR_GUIDE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations-using.html"
PROTECTED_GUIDE = "https://docs.aws.amazon.com/parallelcluster/latest/ug/slurm-protected-mode-v3.html"
STATUS = re.compile(r"Current compute fleet status: (?:ComputeFleetStatus\.)?(\w+)")
# clustermgtd.py, _enter_protected_mode and _handle_protected_mode_process
PROTECTED = re.compile(r"(Setting cluster into|Cluster is in) protected mode")


def protected(facts: ClusterFacts, _wanted: Wanted) -> Verdict:
    reasons, lines = [], list[str]()
    status = ""
    try:
        status = facts.fleet_status
        lines.append(f"fleet status: {status}")
    except Unread as unread:
        reasons.append(unread.why)
    try:
        log = facts.file(CLUSTERMGTD).splitlines()
        lines += [line for line in log if PROTECTED.search(line) or "Node bootstrap error" in line][-4:]
        last = [match[1] for match in map(STATUS.search, log) if match]
        status = status or (last[-1] if last else "PROTECTED" if any(map(PROTECTED.search, log)) else "")
        lines += [f"clustermgtd: {last[-1]}"] if last else []
    except Unread as unread:
        reasons.append(unread.why)
    if status == "PROTECTED":
        return error(
            "the cluster is in PROTECTED mode: it starts no node in queues whose nodes kept failing",
            *lines,
            cause="ten nodes in a row failed before they joined: start-up script, mount, driver or network",
            next_step="repair the cause (lines above, log streams of the nodes), then "
            "`toolkit cluster fleet -f FILE start`",
        )
    if not status:
        raise Unread("; ".join(reasons) or f"{CLUSTERMGTD} tells no status")
    if status in ("STOPPED", "STOPPING", "STOP_REQUESTED"):
        return error(
            f"the compute fleet is {status}",
            *lines,
            cause="somebody stopped it",
            next_step="`toolkit cluster fleet -f FILE start`",
        )
    return ok(f"the compute fleet is {status}", *lines)


def stack(facts: ClusterFacts, _wanted: Wanted) -> Verdict:
    status = facts.stack_status
    if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        return ok(f"stack {status}")
    judge = error if "FAILED" in status or "ROLLBACK" in status else warning
    return judge(
        f"the cluster's stack is {status}",
        f"stack status: {status}",
        cause="a creation, update or deletion goes on or failed",
        next_step="`toolkit cluster describe -f FILE` shows its events; an update rolled back leaves the old "
        "settings in force",
    )


def instances(facts: ClusterFacts, _wanted: Wanted) -> Verdict:
    """Nodes that Slurm counts as there, each with its instance."""
    live = _live(facts)
    expected = [n for n in facts.nodes if not (n.powered_down or n.powering_up or n.unfit)]
    missing = [node for node in expected if _instance_of(node, live) is None]
    lines = tuple(f"{i.instance_id} {i.state} {i.queue or i.node_type} {i.private_ip or ''}" for i in live)
    if not missing:
        return ok(f"{len(expected)} nodes, each with its instance", *lines)
    return error(
        f"no instance behind: {', '.join(node.name for node in missing)}",
        *(f"{node.name} {node.state} {node.address}" for node in missing),
        *lines,
        cause="the instance was terminated outside of ParallelCluster, or was lost",
        next_step="`sudo scontrol update nodename=NODE state=power_down_force`; it is started anew on demand",
    )


def powering_up(facts: ClusterFacts, wanted: Wanted) -> Verdict:
    waiting = [node for node in facts.nodes if node.powering_up]
    if not waiting:
        return ok("no node is starting")
    live = _live(facts)
    late, lines = [], []
    for node in waiting:
        instance = _instance_of(node, live)
        started = instance.launched_at if instance else None
        age = f"for {(wanted.now - started) / 60:.0f} min" if started else "for an unknown time"
        lines.append(
            f"{node.name} {node.state}: {instance.instance_id if instance else 'no instance'}, {age}"
        )
        if instance is None or (started and wanted.now - started > BOOTSTRAP_SECONDS):
            late.append(node.name)
    if not late:
        return ok(f"{len(waiting)} nodes are starting", *lines)
    return error(
        f"nodes that start and do not arrive: {', '.join(late)}",
        *lines,
        cause="EC2 gave no instance yet, or its start-up failed; it is given up after 35 minutes",
        next_step="log streams cloud-init-output and slurmd of the node: "
        "`aws logs tail /aws/parallelcluster/CLUSTER-DATE`",
    )


def reservation(facts: ClusterFacts, wanted: Wanted) -> Verdict:
    found = facts.reservation
    told = f"{found.reservation_id}: {found.state}, {found.available} of {found.total} free"
    evidence = f"{told}, {found.instance_type} in {found.availability_zone}"
    if found.state != "active":
        return error(
            f"the capacity reservation is {found.state}",
            evidence,
            cause="it ended, was cancelled, or has not begun; nodes that run go on, new ones do not start",
            next_step="make or extend one, set target.capacity.reservation, `toolkit cluster update`",
        )
    if found.ends_at is not None and found.ends_at - wanted.now < SOON_SECONDS:
        return warning(
            f"the capacity reservation ends in {max(0.0, found.ends_at - wanted.now) / 3600:.1f} h",
            evidence,
            cause="it has an end date; a capacity block's instances are terminated 30 minutes before its end",
            next_step="end your runs before, or extend the reservation",
        )
    if isinstance(facts.node_list, Missing):
        return ok(f"{told}; how many more nodes are needed is not known", evidence)
    down = [n for n in facts.nodes if wanted.gpu_partition in n.partitions and (n.powered_down or n.unfit)]
    running = len([n for n in facts.nodes if wanted.gpu_partition in n.partitions]) - len(down)
    lacking = max(0, wanted.gpu_nodes - running)
    if found.available < lacking:
        return error(
            f"{lacking} more nodes are needed, the reservation has {found.available} free",
            evidence,
            cause="other instances use the reservation, or it is smaller than the deployment",
            next_step="`aws ec2 get-capacity-reservation-usage` shows by whom; make it larger",
        )
    return ok(told, evidence)


def members(facts: ClusterFacts, wanted: Wanted) -> Verdict:
    compute = [i for i in _live(facts) if i.node_type == "Compute" and i.queue == wanted.gpu_partition]
    outside = [i for i in compute if i.reservation != wanted.reservation]
    lines = tuple(
        f"{i.instance_id} {i.private_ip or ''}: {i.reservation or 'no reservation'}" for i in compute
    )
    if not outside:
        return ok(f"{len(compute)} GPU instances, all in {wanted.reservation}", *lines)
    return error(
        f"{len(outside)} GPU instances are not in {wanted.reservation}",
        *lines,
        cause="the queue does not target the reservation: they are paid on top of it and may not be replaced",
        next_step="set target.capacity.reservation, `toolkit cluster update`, and replace these nodes",
    )


def _live(facts: ClusterFacts) -> list[InstanceSide]:
    return [instance for instance in facts.instances if instance.state in LIVE]


def _instance_of(node: SlurmNode, live: list[InstanceSide]) -> InstanceSide | None:
    """By address, which ParallelCluster writes into the node; before that it is the node's own name."""
    return next((each for each in live if each.private_ip and each.private_ip == node.address), None)


def _in_reservation(facts: ClusterFacts, wanted: Wanted) -> bool:
    return on_parallelcluster(facts, wanted) and wanted.reservation is not None


def _with_nodes(facts: ClusterFacts, wanted: Wanted) -> bool:
    return on_parallelcluster(facts, wanted) and facts.controller_up


CHECKS: tuple[Check[ClusterFacts], ...] = (
    Check(
        "capacity.fleet",
        f"the compute fleet's status, {CLUSTERMGTD}: PROTECTED, STOPPED",
        PROTECTED_GUIDE,
        protected,
        on_parallelcluster,
    ),
    Check("capacity.stack", "status of the cluster's stack", TROUBLESHOOTING, stack, on_parallelcluster),
    Check("capacity.instances", "an instance behind every node", NODE_DAEMON, instances, _with_nodes),
    Check(
        "capacity.powering_up",
        "nodes that start, and since when",
        TROUBLESHOOTING,
        powering_up,
        _with_nodes,
    ),
    Check(
        "capacity.reservation",
        "the reservation's state, end and free instances",
        ODCR_GUIDE,
        reservation,
        _in_reservation,
    ),
    Check(
        "capacity.members",
        "GPU instances that run outside the reservation",
        ODCR_GUIDE,
        members,
        _in_reservation,
    ),
)
