"""Why a creation failed: pcluster's word, CloudFormation's events and the nodes' logs together. Pure.

CloudFormation mostly says only that the head node's wait condition failed; the cause is in a log line. Texts
are matched as aws-parallelcluster (head_node/user_data.sh, models/cluster_resources.py), its cookbook
(custom_action_executor.py, write_chef_error_handler.rb) and aws-parallelcluster-node (slurm_plugin) do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.remote.pcluster_answer import Cluster, LogStream, StackEvent

KINDS = (
    "capacity",
    "limit",
    "ami",
    "node-check",
    "bootstrap-script",
    "mount",
    "permission",
    "static-nodes",
    "timeout",
    "head-node",
    "resource",
    "unknown",
)
MOST_EVIDENCE = 8
_HEAD_LOGS = ("cfn-init", "clustermgtd", "chef-client", "slurm_resume", "cloud-init-output")
_MOST_NODES = 3
_ADVICE = re.compile(r" Please check /var/log/.*?troubleshooting-v3-get-logs for more details on \w+ logs\.")


@dataclass(frozen=True)
class Failure:
    """`evidence` holds the very lines, each after its source (a resource or a log stream). `look_closer` says
    how to keep a failed cluster, and is empty if this one was kept."""

    kind: str
    evidence: tuple[str, ...]
    cause: str
    next_step: str
    look_closer: str = ""


@dataclass(frozen=True)
class _Line:
    source: str
    text: str

    def __str__(self) -> str:
        """Without the advice that ParallelCluster puts behind what happened."""
        return f"{self.source}: {_ADVICE.sub('', self.text)}"


@dataclass(frozen=True)
class _Rule:
    kind: str
    pattern: str
    cause: str
    next_step: str


# The cause itself, wherever it is told.
_CAUSES = (
    _Rule(
        "capacity",
        r"Insufficient(?:Instance|Host|ReservedInstance)Capacity|MaxSpotInstanceCountExceeded"
        r"|ReservationCapacityExceeded|SpotMaxPriceTooLow|do not have sufficient \S+ capacity",
        "AWS had no capacity for an instance",
        "see that the capacity reservation is active, in the queue's zone, of its instance type and not "
        "in use "
        "(`aws ec2 describe-capacity-reservations`); without one, try another zone or later",
    ),
    _Rule(
        "limit",
        r"VcpuLimitExceeded|vCPU limit|LimitExceeded|InstanceLimitExceeded|quota|VolumeLimitExceeded",
        "a quota of the account refused a resource",
        "raise the quota that is named in Service Quotas, for this region; then create again",
    ),
    _Rule(
        "ami",
        r"This AMI was created with|This AMI was not baked by ParallelCluster|AmiVersionMismatch"
        r"|InvalidAmi\b",
        "the AMI was not made for this version of ParallelCluster",
        "use an AMI that `toolkit image build` made with the deployment's version, or leave the official one",
    ),
    _Rule(
        "node-check",
        r"pd-verify: ",
        "a node is not what its image should make it",
        "`toolkit image describe` holds the image against ami-setup/versions.yaml; correct target.image or "
        "build the image again, then create again",
    ),
    _Rule(
        "bootstrap-script",
        r"Failed to (?:execute|download|run) OnNode(?:Configured|Start|Updated) script",
        "a script of CustomActions failed",
        "correct that script or its access to the bucket (S3Access of the head node and of each queue), "
        "put it "
        "into the bucket again and create again",
    ),
    _Rule(
        "mount",
        r"Failed to mount (?:EBS|EFS|FSX|RAID)|(?:Ebs|Efs|Fsx|Raid)MountFailure|mount\.lustre: .* failed",
        "a shared file system could not be mounted",
        "see that the file system is AVAILABLE, in the cluster's VPC, and that its security group lets the "
        "nodes in (Lustre: TCP 988 and 1018-1023)",
    ),
)
# Words that only CloudFormation's events may decide by: logs hold them without harm.
_DENIED = _Rule(
    "permission",
    r"is not authorized to perform|AccessDenied|UnauthorizedOperation|not authorized",
    "the credentials may not create a resource",
    "let an administrator allow the action that is named, or give the cluster roles that exist (Iam section)",
)
# What is left when no line tells the cause.
_SYMPTOMS = (
    _Rule(
        "static-nodes",
        r"PROTECTED mode|protected mode|StaticNodeBootstrapFailure",
        "the static nodes did not come up, so ParallelCluster went into PROTECTED mode",
        "read clustermgtd's log and the nodes' cloud-init-output: `toolkit doctor cluster` shows both",
    ),
    _Rule(
        "timeout",
        r"WaitCondition timed out",
        "the head node did not report in time; most often it waits for static nodes that never come",
        "read the end of the head node's chef-client log; with MinCount 0 in every queue the head node "
        "comes up "
        "without nodes",
    ),
    _Rule(
        "head-node",
        r"Failed to run chef recipe|Failed to bootstrap the head node|HeadNodeBootstrapFailure"
        r"|WaitCondition received failed message",
        "the head node could not be set up",
        "read the head node's chef-client and cfn-init logs",
    ),
)
_SCRIPT = re.compile(
    r"Failed to (?P<verb>execute|download|run) (?P<event>OnNode\w+) script (?P<step>\d+)?(?: (?P<url>\S+://[^\s,]+))?"
    r"(?:.*?return code: (?P<code>\d+))?"
)


def relevant_streams(streams: Iterable[LogStream]) -> tuple[str, ...]:
    """The streams that `classify` reads: those of the head node, and the newest of a few compute nodes."""
    known = list(streams)
    heads = {_host(each.name) for each in known if each.name.endswith((".clustermgtd", ".cfn-init"))}
    head = [each.name for kind in _HEAD_LOGS for each in known if _is(each.name, kind, heads)]
    nodes = [
        each for each in known if _host(each.name) not in heads and each.name.endswith(".cloud-init-output")
    ]
    nodes.sort(key=lambda each: each.last_event.timestamp() if each.last_event else 0.0, reverse=True)
    return (*head, *(each.name for each in nodes[:_MOST_NODES]))


def classify(
    cluster: Cluster | None, events: Sequence[StackEvent], logs: Mapping[str, Sequence[str]]
) -> Failure:
    """The cause of a failed creation. `logs`: lines by name of stream; `cluster` is None if it could not be
    described. What matches nothing is `resource` (the failed one's reason is the cause) or `unknown`."""
    failed = [_Line(each.resource, each.reason) for each in events if _counts(each)]
    codes = [_Line("pcluster", f"{each.code}: {each.reason}") for each in cluster.failures] if cluster else []
    lines = [_Line(stream, text) for stream, texts in logs.items() for text in texts]
    closer = _look_closer(cluster, events)
    for rule, where in (
        *((rule, failed) for rule in (*_CAUSES, _DENIED)),
        *((rule, [*lines, *codes]) for rule in _CAUSES),
        *((rule, [*failed, *codes, *lines]) for rule in _SYMPTOMS),
    ):
        if any(re.search(rule.pattern, line.text) for line in where):
            return _told(rule, failed, [*lines, *codes], closer)
    if failed:
        cause = (
            f"{failed[0].source} could not be created: {failed[0].text or 'CloudFormation gave no reason'}"
        )
        step = (
            "correct what the reason names; CloudFormation's documentation of the resource type explains it"
        )
        return Failure("resource", _evidence(failed, codes), cause, step, closer)
    step = "look at the stack's events in CloudFormation, and at the log group /aws/parallelcluster/NAME-*"
    return Failure("unknown", _evidence(codes, lines[-3:]), "nothing tells the cause", step, closer)


def _told(rule: _Rule, failed: list[_Line], others: list[_Line], closer: str) -> Failure:
    proof = [line for line in others if re.search(rule.pattern, line.text)]
    kind, cause = rule.kind, rule.cause
    if kind == "bootstrap-script":
        cause = _script_cause([*proof, *failed]) or cause
    elif kind == "node-check" and proof:
        cause = f"{cause}: {proof[0].text.removeprefix('pd-verify: ').partition(';')[0]}"
    elif kind in ("permission", "limit") and failed:
        cause = f"{cause}: {failed[0].source}"
    return Failure(kind, _evidence(failed, proof), cause, rule.next_step, closer)


def _script_cause(lines: Sequence[_Line]) -> str:
    """Which script, where and how: the head node's log names the URL, CloudFormation's reason does not."""
    found = [(line, match) for line in lines if (match := _SCRIPT.search(line.text))]
    if not found:
        return ""
    line, match = max(found, key=lambda each: bool(each[1]["url"]))
    verb = {"execute": "failed", "download": "could not be downloaded", "run": "could not be run"}[
        match["verb"]
    ]
    code = next((each["code"] for _, each in found if each["code"]), "")
    return (
        f"{match['event']} script {match['url'] or match['step'] or ''} {verb}"
        + (f" with return code {code}" if code else "")
        + f" on {_host(line.source)}"
    )


def _counts(event: StackEvent) -> bool:
    """Failures with a reason of their own: not what was cancelled for another's, nor the stack's summary."""
    return (
        event.status.endswith("_FAILED")
        and event.status != "DELETE_FAILED"
        and "creation cancelled" not in event.reason
        and not event.reason.startswith("The following resource(s) failed")
    )


def _look_closer(cluster: Cluster | None, events: Sequence[StackEvent]) -> str:
    states = [event.status for event in events] + ([cluster.stack_status] if cluster else [])
    if not any(state.startswith("ROLLBACK") for state in states):
        return ""
    return (
        "create again with --no-rollback: a failed cluster then stays, for `toolkit doctor cluster` to read"
    )


def _evidence(*groups: Sequence[_Line]) -> tuple[str, ...]:
    """What several nodes say alike is told once."""
    sources: dict[str, list[_Line]] = {}
    for line in (line for group in groups for line in group):
        sources.setdefault(line.text, []).append(line)
    told = [f"{same[0]}{_and_others(same)}" for same in sources.values()]
    return tuple(told[:MOST_EVIDENCE])


def _and_others(same: Sequence[_Line]) -> str:
    others = len({line.source for line in same}) - 1
    return f" (and from {others} more)" if others else ""


def _is(stream: str, kind: str, heads: set[str]) -> bool:
    return stream.endswith(f".{kind}") and _host(stream) in heads


def _host(stream: str) -> str:
    """`ip-10-0-0-4` of `ip-10-0-0-4.i-0123.clustermgtd`."""
    return stream.split(".")[0]
