"""Failed creations, classified: outputs that the real pcluster gave (tests/aws/record.py), and single lines
as ParallelCluster's documentation and sources have them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from toolkit.remote import pcluster_answer as answer
from toolkit.remote.pcluster_answer import LogStream, StackEvent
from toolkit.remote.pcluster_failure import KINDS, Failure, classify, relevant_streams

RECORDED = Path(__file__).parents[1] / "aws" / "recorded"
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def recorded(name: str) -> Failure:
    document = json.loads((RECORDED / f"{name}.json").read_text())
    streams = relevant_streams(answer.log_stream(each) for each in document["streams"])
    return classify(
        answer.cluster(document["cluster"]),
        [answer.stack_event(each) for each in document["events"]],
        {stream: [each["message"] for each in document["logs"][stream]] for stream in streams},
    )


@pytest.mark.parametrize(
    ("name", "kind", "proof", "cause"),
    [
        (
            "bootstrap-script",
            "bootstrap-script",
            "return code: 3",
            "bootstrap/configure.sh failed with return code 3",
        ),
        ("mount", "mount", "Failed to mount FSX", "file system"),
        ("bad-ami", "ami", "was not baked by ParallelCluster", "AMI"),
        ("insufficient-capacity", "capacity", "(InsufficientInstanceCapacity)", "capacity"),
        (
            "node-script",
            "bootstrap-script",
            "bootstrap/verify.sh, return code: 3",
            "bootstrap/verify.sh failed",
        ),
        ("head-capacity", "capacity", "do not have sufficient c6i.2xlarge", "capacity"),
        ("timeout", "timeout", "WaitCondition timed out", "did not report in time"),
        ("denied", "permission", "is not authorized to perform: iam:CreateRole", "FunctionExecutionRole"),
        ("limit", "limit", "vCPU limit of 4", "HeadNode"),
    ],
)
def test_recorded_failure(name: str, kind: str, proof: str, cause: str) -> None:
    failure = recorded(name)
    assert failure.kind == kind
    assert any(proof in line for line in failure.evidence), failure.evidence
    assert cause in failure.cause
    assert failure.next_step


def test_a_rolled_back_cluster_is_to_be_kept_next_time() -> None:
    assert "--no-rollback" in recorded("bootstrap-script").look_closer
    assert recorded("mount").look_closer == ""


def test_evidence_is_the_very_line_after_its_source() -> None:
    document = json.loads((RECORDED / "insufficient-capacity.json").read_text())
    lines = {event["message"] for events in document["logs"].values() for event in events}
    told = [line for line in recorded("insufficient-capacity").evidence if ".clustermgtd: " in line]
    assert told
    assert all(line.split(".clustermgtd: ", 1)[1] in lines for line in told)


def event(
    reason: str, *, resource: str = "HeadNodeWaitCondition", status: str = "CREATE_FAILED"
) -> StackEvent:
    return StackEvent("1", WHEN, resource, "AWS::CloudFormation::WaitCondition", "", status, reason)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        # EC2 API error codes, https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
        (
            "An error occurred (ReservationCapacityExceeded) when calling the RunInstances operation: ...",
            "capacity",
        ),
        (
            "Error in CreateFleet request (1a2b): MaxSpotInstanceCountExceeded - Max spot instance count "
            "exceeded",
            "capacity",
        ),
        (
            "Error in CreateFleet request (1a2b): VcpuLimitExceeded - You have requested more vCPU capacity",
            "limit",
        ),
        # custom_action_executor.py of aws-parallelcluster-cookbook
        (
            "fetch_and_run - Failed to download OnNodeStart script 2 s3://b/start.sh using aws s3, "
            "cause: An error "
            "occurred (403) when calling the HeadObject operation: Forbidden.",
            "bootstrap-script",
        ),
        (
            "fetch_and_run - Failed to run OnNodeConfigured script 1 https://x/y.sh due to a failure",
            "bootstrap-script",
        ),
        # aws-parallelcluster issue 5511
        (
            "fetch_and_run - Failed to execute OnNodeConfigured script 1 s3://b/k.sh, return code: 2",
            "bootstrap-script",
        ),
    ],
)
def test_a_log_line_tells_what_the_wait_condition_does_not(line: str, kind: str) -> None:
    protected = "Cluster has been set to PROTECTED mode due to failures detected in static node provisioning."
    failed = [event(f"WaitCondition received failed message: '{protected}' for uniqueId: i-1")]
    failure = classify(None, failed, {"ip-10-0-0-4.i-1.clustermgtd": ["Startup", line]})
    assert failure.kind == kind
    assert f"ip-10-0-0-4.i-1.clustermgtd: {line}" in failure.evidence


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Failed to mount EFS.", "mount"),
        ("Failed to mount RAID array.", "mount"),
        ("Failed to mount EBS volume.", "mount"),
        ("This AMI was created with 3.13.0, but is trying to be used with 3.14.2.", "ami"),
        ("Failed to run chef recipe aws-parallelcluster-slurm::finalize", "head-node"),
        ("Failed to bootstrap the head node.", "head-node"),
        (
            "Cluster has been set to PROTECTED mode due to failures detected in static node provisioning",
            "static-nodes",
        ),
    ],
)
def test_a_signalled_reason_tells_it_alone(reason: str, kind: str) -> None:
    failed = [event(f"WaitCondition received failed message: '{reason}' for uniqueId: i-1")]
    assert classify(None, failed, {}).kind == kind


def test_a_cause_in_the_events_comes_before_one_in_the_logs() -> None:
    failed = [event("WaitCondition received failed message: 'Failed to mount FSX.' for uniqueId: i-1")]
    logs = {"ip-10-0-0-4.i-1.clustermgtd": ["InsufficientInstanceCapacity"]}
    assert classify(None, failed, logs).kind == "mount"


def test_an_unknown_reason_is_told_as_it_is() -> None:
    failure = classify(None, [event("Subnet is gone", resource="HeadNodeENI")], {})
    assert (failure.kind, failure.evidence) == ("resource", ("HeadNodeENI: Subnet is gone",))
    assert "HeadNodeENI could not be created: Subnet is gone" in failure.cause


def test_cancelled_resources_and_the_summary_are_no_cause() -> None:
    events = [
        event("Resource creation cancelled", resource="A"),
        event("The following resource(s) failed to create: [A, B].", resource="pd"),
    ]
    assert classify(None, events, {}).kind == "unknown"


def test_an_access_denied_in_a_log_decides_nothing() -> None:
    failed = [event("WaitCondition timed out. Received 0 conditions when expecting 1")]
    logs = {"ip-10-0-0-4.i-1.cfn-init": ["AccessDenied for ssm:UpdateInstanceInformation, ignored"]}
    assert classify(None, failed, logs).kind == "timeout"


def test_streams_to_read_are_the_heads_and_the_newest_of_three_nodes() -> None:
    def stream(name: str, minute: int = 0) -> LogStream:
        return LogStream(name, datetime(2026, 1, 1, 0, minute, tzinfo=UTC))

    nodes = [stream(f"ip-10-0-16-{n}.i-{n}.cloud-init-output", n) for n in range(1, 6)]
    head = [stream(f"ip-10-0-0-4.i-0.{kind}") for kind in ("chef-client", "clustermgtd", "slurmctld")]
    assert relevant_streams([*nodes, *head]) == (
        "ip-10-0-0-4.i-0.clustermgtd",
        "ip-10-0-0-4.i-0.chef-client",
        "ip-10-0-16-5.i-5.cloud-init-output",
        "ip-10-0-16-4.i-4.cloud-init-output",
        "ip-10-0-16-3.i-3.cloud-init-output",
    )


def test_every_recorded_kind_is_named() -> None:
    assert {recorded(path.stem).kind for path in RECORDED.glob("*.json")} <= set(KINDS)
