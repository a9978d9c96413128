"""After a creation that failed: all that stays and is billed is told, by the state that AWS left it in."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from toolkit.flows.cluster_remains import Remains, remains_lines, remains_step
from toolkit.remote.aws_instances import ClusterInstance
from toolkit.remote.aws_leftovers import Leftover
from toolkit.remote.aws_stack import StackResource

SAME = "-f mine.yaml --set a=b"
VOLUME = Leftover("file system", "fs-0123456789abcdef0", "billed: aws fsx delete-file-system")
GROUP = Leftover("security group", "sg-0123456789abcdef0", "aws ec2 delete-security-group")
STUCK = StackResource("Eni", "AWS::EC2::NetworkInterface", "eni-0", "DELETE_FAILED", "is in use")


def instance(number: int, kind: str, role: str, queue: str = "") -> ClusterInstance:
    launched = datetime(2026, 1, 1, tzinfo=UTC)
    return ClusterInstance(f"i-{number}", kind, "running", role, queue, "", "", "", "", launched)


NODES = (
    instance(0, "c6i.2xlarge", "HeadNode"),
    instance(1, "p5en.48xlarge", "Compute", "gpu"),
    instance(2, "p5en.48xlarge", "Compute", "gpu"),
    instance(3, "c6i.4xlarge", "Compute", "router"),
)
RUNNING = "running, and billed: 1 c6i.2xlarge (head node), 2 p5en.48xlarge (gpu), 1 c6i.4xlarge (router)"


@pytest.mark.parametrize("status", ["CREATE_FAILED", "ROLLBACK_FAILED"])
def test_every_instance_that_runs_is_counted_by_type(status: str) -> None:
    assert RUNNING in remains_lines(status, Remains(instances=NODES))


@pytest.mark.parametrize("status", ["ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE"])
def test_nodes_that_are_taken_down_are_not_told_as_staying(status: str) -> None:
    assert list(remains_lines(status, Remains(instances=NODES))) == []


@pytest.mark.parametrize(
    "status", ["CREATE_FAILED", "ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED"]
)
def test_what_cloudformation_retains_is_named_with_its_command(status: str) -> None:
    told = "\n".join(remains_lines(status, Remains(kept=(VOLUME, GROUP))))
    for each in (VOLUME, GROUP):
        assert f"{each.id}; {each.removal}" in told
    assert "staying" in remains_step(status, Remains(kept=(VOLUME, GROUP)), SAME)


def test_a_rollback_that_failed_is_not_told_as_done() -> None:
    remains = Remains(stuck=(STUCK,))
    assert "not taken down: Eni (eni-0): is in use" in remains_lines("ROLLBACK_FAILED", remains)
    step = remains_step("ROLLBACK_FAILED", remains, SAME)
    assert "could not take it all down (ROLLBACK_FAILED)" in step
    assert "has taken down" not in step
    assert f"`toolkit cluster delete {SAME}`" in step


def test_what_could_not_be_read_is_said() -> None:
    assert any("refused" in line for line in remains_lines("ROLLBACK_COMPLETE", Remains(unread="refused")))
