"""Slurm and ParallelCluster's daemons: controller, nodes and reasons, partitions, logs, shared mounts."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from toolkit.doctor.check import Check
from toolkit.doctor.cluster_facts import CHEF, CLUSTERMGTD, EXPORTS, MOUNTS, RESUME, ClusterFacts
from toolkit.doctor.finding import Unread, Verdict, error, ok, warning
from toolkit.doctor.log_patterns import LOG_PATTERNS, NODE_DAEMON, TROUBLESHOOTING
from toolkit.doctor.slurm_nodes import INVALID, SILENT, SlurmNode
from toolkit.doctor.wanted import Wanted

SLURM_GUIDE = "https://slurm.schedmd.com/troubleshoot.html"
GRES_GUIDE = "https://slurm.schedmd.com/gres.html"
HEAD_GUIDE = "https://docs.aws.amazon.com/parallelcluster/latest/ug/pcluster.ssh-v3.html"
SHARED = ("/home", "/opt/slurm")


@dataclass(frozen=True)
class Reason:
    """What a node's reason tells. `pattern` is looked for in the reason's text."""

    pattern: str
    cause: str
    next_step: str
    source: str


# Texts: aws-parallelcluster-node (clustermgtd.py, resume.py, slurm_resources.py), Slurm's own last.
REASONS = (
    Reason(
        r"\(Code:(Insufficient\w*Capacity|ReservationCapacityExceeded|MaxSpot\w+|SpotMax\w+|Unsupported)\)",
        "EC2 gave no instance: the reservation is used up or does not fit, or there is no capacity; "
        "ParallelCluster tries again after insufficient_capacity_timeout (10 minutes)",
        "look at capacity.reservation here; the queue must target a reservation with free instances of its "
        "type and zone",
        TROUBLESHOOTING,
    ),
    Reason(
        r"\(Code:\w+\)",
        "EC2 refused the instance with this code",
        "look the code up, then /var/log/parallelcluster/slurm_resume.log on the head node",
        TROUBLESHOOTING,
    ),
    Reason(
        r"Failure when resuming nodes",
        "ParallelCluster's resume program ended before the instances were started",
        "read /var/log/parallelcluster/slurm_resume.log on the head node",
        NODE_DAEMON,
    ),
    Reason(
        r"Node failing|[Hh]ealth check failed",
        "EC2's status checks or Slurm's heartbeat failed for the instance",
        "ParallelCluster replaces it once its jobs have ended; see "
        "`aws logs tail /aws/parallelcluster/CLUSTER-DATE`",
        TROUBLESHOOTING,
    ),
    Reason(
        r"Static node maintenance",
        "ParallelCluster replaces the node just now",
        "wait for the bootstrap (up to 35 minutes); if it comes again, read clustermgtd's log",
        NODE_DAEMON,
    ),
    Reason(
        r"count reported lower than configured|Low (RealMemory|CPUs|socket)",
        "the node has less than slurm.conf says: GPUs without driver, or another instance type",
        "`nvidia-smi` on the node; `slurmd -C` there against the node's line in slurm.conf",
        GRES_GUIDE,
    ),
    Reason(
        r"Kill task failed|Prolog error|Epilog error",
        "a job's processes could not be ended, or its prolog failed",
        "look for stuck processes on the node; then `sudo scontrol update nodename=NODE state=resume`",
        "https://github.com/aws/aws-parallelcluster/issues/1110",
    ),
    Reason(
        r"Not responding|unexpectedly rebooted",
        "slurmd on the node is gone or can't be reached",
        "`sudo systemctl status slurmd` on the node, its log /var/log/slurmd.log; port 6818 between nodes",
        SLURM_GUIDE,
    ),
)
NO_REASON = Reason(
    "",
    "somebody or something took it out of service",
    "`scontrol show node NODE`; when it is fit again `sudo scontrol update nodename=NODE state=resume`",
    SLURM_GUIDE,
)


def head_node(facts: ClusterFacts, _wanted: Wanted) -> Verdict:
    if not facts.no_head:
        return ok("the head node answers")
    return error(
        "the head node can't be reached, so nothing on it was read",
        facts.no_head,
        cause="it is stopped or not there, its address or key is another one, or AWS can't be asked for them",
        next_step="`toolkit cluster describe -f FILE`; give target.ssh.host, and your AWS credentials; its "
        "security group must let your address in",
    )


def controller(facts: ClusterFacts, _wanted: Wanted) -> Verdict:
    if facts.controller_up:
        return ok("the Slurm controller answers", facts.controller)
    return error(
        "no Slurm controller answers",
        facts.controller,
        cause="slurmctld is down, or this is not the cluster's head node",
        next_step="on the head node: `sudo systemctl restart slurmctld`, /var/log/slurmctld.log; embedded: "
        "`toolkit cluster create -f FILE`",
    )


def nodes(facts: ClusterFacts, _wanted: Wanted) -> list[Verdict]:
    """One verdict for all nodes of the same state and reason."""
    alike: dict[tuple[str, str], list[SlurmNode]] = defaultdict(list)
    for node in facts.nodes:
        if node.unfit:
            alike[node.state, re.sub(r"\s*\[.*?@.*?\]$", "", node.reason)].append(node)
    if not alike:
        return [ok(f"{len(facts.nodes)} nodes fit to work", *(f"{n.name}: {n.state}" for n in facts.nodes))]
    return [_unfit(state, reason, which) for (state, reason), which in alike.items()]


def _unfit(state: str, reason: str, which: list[SlurmNode]) -> Verdict:
    names = ", ".join(node.name for node in which)
    known = next((each for each in REASONS if re.search(each.pattern, reason)), None)
    # A node that stopped answering is DOWN* before anybody gives a reason.
    if known is None and SILENT in which[0].states:
        known = next(each for each in REASONS if "Not responding" in each.pattern)
    told = known or NO_REASON
    symptom = f"{names}: {state}" + (f", {reason}" if reason else "")
    evidence = tuple(f"{node.name} {node.state} reason={node.reason or '(none)'}" for node in which)
    # An administrator's drain with a reason of their own is no fault by itself.
    drained = not {"DOWN", INVALID, SILENT, "FAIL", "ERROR"}.intersection(which[0].states)
    judge = warning if drained and known is None else error
    return judge(symptom, *evidence, cause=told.cause, next_step=told.next_step, source=told.source)


def partitions(facts: ClusterFacts, _wanted: Wanted) -> Verdict:
    lines = tuple(f"{each.name}: {each.state}" for each in facts.partitions)
    shut = [each.name for each in facts.partitions if each.state != "UP"]
    if not shut:
        return ok("every partition takes jobs", *lines)
    return error(
        f"partitions that take no jobs: {', '.join(shut)}",
        *lines,
        cause="ParallelCluster sets a partition INACTIVE when its nodes keep failing at start or the fleet "
        "is stopped; an administrator sets DOWN",
        next_step="find why its nodes fail, then `toolkit cluster fleet -f FILE start`",
    )


def gpus(facts: ClusterFacts, wanted: Wanted) -> Verdict:
    there = [node for node in facts.nodes if wanted.gpu_partition in node.partitions]
    if not there:
        return error(
            f"no node is in partition {wanted.gpu_partition}",
            *(f"{node.name}: {', '.join(node.partitions)}" for node in facts.nodes),
            cause="the queue has another name, or the cluster was made without it",
            next_step="set target.gpu_partition to a partition of `sinfo`",
        )
    lines = [f"{node.name}: {node.gpus} GPUs" for node in there]
    wrong = [node for node in there if node.gpus != wanted.gpus]
    if not wrong:
        return ok(f"{wanted.gpus} GPUs configured on every node of {wanted.gpu_partition}", *lines)
    return error(
        f"{len(wrong)} nodes of {wanted.gpu_partition} have not {wanted.gpus} GPUs in Slurm's configuration",
        *lines,
        cause="the queue is of another instance type than the settings say, or gres.conf was changed",
        next_step="compare target.gpu.instance_type with the cluster: `toolkit cluster diff -f FILE`",
    )


def enough_nodes(facts: ClusterFacts, wanted: Wanted) -> Verdict:
    there = [node for node in facts.nodes if wanted.gpu_partition in node.partitions]
    fit = [node for node in there if not node.unfit]
    lines = [f"{node.name}: {node.state}" for node in there]
    if len(fit) >= wanted.gpu_nodes:
        return ok(f"{len(fit)} nodes for {wanted.gpu_nodes} engines", *lines)
    return error(
        f"{len(fit)} fit nodes in {wanted.gpu_partition}, the deployment needs {wanted.gpu_nodes}",
        *lines,
        cause="nodes are out of service, or the queue is smaller than the deployment",
        next_step="bring the nodes back, or raise target.gpu.max_nodes and `toolkit cluster update`",
    )


def logs(facts: ClusterFacts, _wanted: Wanted) -> list[Verdict]:
    """One verdict for each pattern found, with its last lines from every log."""
    found: dict[int, list[str]] = defaultdict(list)
    unread: list[str] = []
    for path in (CLUSTERMGTD, RESUME, CHEF):
        try:
            lines = facts.file(path).splitlines()
        except Unread as reason:
            unread.append(reason.why)
            continue
        for number, each in enumerate(LOG_PATTERNS):
            found[number] += [f"{path}: {line}" for line in lines if re.search(each.pattern, line)][-2:]
    if len(unread) == 3:
        raise Unread("; ".join(unread))
    verdicts = [
        warning(each.symptom, *found[number], cause=each.cause, next_step=each.next_step, source=each.source)
        for number, each in enumerate(LOG_PATTERNS)
        if found[number]
    ]
    return verdicts or [ok("no known fault in the head node's logs", *unread)]


def mounts(facts: ClusterFacts, _wanted: Wanted) -> Verdict:
    exported = {line.split()[0] for line in facts.file(EXPORTS).splitlines() if line.strip()[:1] == "/"}
    mounted = {
        words[1]
        for words in (line.split() for line in facts.file(MOUNTS).splitlines())
        if len(words) > 2 and words[2] in ("nfs", "nfs4", "lustre", "efs")
    }
    missing = [path for path in SHARED if path not in exported | mounted]
    evidence = (f"exported: {', '.join(sorted(exported))}", f"from elsewhere: {', '.join(sorted(mounted))}")
    if not missing:
        return ok("the head node shares what nodes need", *evidence)
    return error(
        f"the head node does not share {', '.join(missing)}",
        *evidence,
        cause="/etc/exports was changed, or a shared file system is not mounted on the head node",
        next_step="`sudo exportfs -ra`, `sudo mount -a`; nodes can't start slurmd without it",
    )


def head_reached(facts: ClusterFacts, _wanted: Wanted) -> bool:
    return not facts.no_head


def on_parallelcluster(_facts: ClusterFacts, wanted: Wanted) -> bool:
    return wanted.parallelcluster


def files_read(facts: ClusterFacts, wanted: Wanted) -> bool:
    return on_parallelcluster(facts, wanted) and head_reached(facts, wanted)


def slurm_answers(facts: ClusterFacts, _wanted: Wanted) -> bool:
    return facts.controller_up


def _gpus_known(facts: ClusterFacts, wanted: Wanted) -> bool:
    return facts.controller_up and bool(wanted.gpus) and bool(wanted.gpu_partition)


CHECKS: tuple[Check[ClusterFacts], ...] = (
    Check("slurm.head_node", "whether the head node can be reached", HEAD_GUIDE, head_node),
    Check("slurm.controller", "`scontrol ping`", SLURM_GUIDE, controller, head_reached),
    Check("slurm.nodes", "states and reasons of nodes", SLURM_GUIDE, nodes, slurm_answers),
    Check("slurm.partitions", "states of partitions", TROUBLESHOOTING, partitions, slurm_answers),
    Check("slurm.gpus", "GPUs of nodes in slurm.conf against GPUs expected", GRES_GUIDE, gpus, _gpus_known),
    Check(
        "slurm.enough_nodes",
        "fit nodes of the GPU partition against engines of the deployment",
        SLURM_GUIDE,
        enough_nodes,
        lambda facts, wanted: facts.controller_up and bool(wanted.gpu_partition),
    ),
    Check("slurm.logs", f"{CLUSTERMGTD}, {RESUME}, {CHEF}", NODE_DAEMON, logs, files_read),
    Check(
        "slurm.mounts",
        f"{EXPORTS} and mounts of the head node: {', '.join(SHARED)}",
        TROUBLESHOOTING,
        mounts,
        files_read,
    ),
)
