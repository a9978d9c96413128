"""Creations that fail: what the user is told, with the lines that prove it, and what can be done next."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.aws, pytest.mark.slow]


@pytest.mark.parametrize(
    ("version", "outcome", "kind", "proof"),
    [
        (
            "3.14.2",
            "bootstrap-script",
            "bootstrap-script",
            "Failed to execute OnNodeConfigured script 1 s3://",
        ),
        ("3.16.1", "insufficient-capacity", "capacity", "InsufficientInstanceCapacity"),
        ("3.14.2", "mount", "mount", "Failed to mount FSX"),
    ],
)
def test_a_failed_creation_is_classified(
    fresh: Callable[..., Any], version: str, outcome: str, kind: str, proof: str
) -> None:
    toolkit = fresh(version, outcome=outcome)
    told = toolkit("create", "--yes", expect=1).stderr
    error = told[told.index("error: ") :]
    assert f"({kind})" in error
    assert proof in error
    assert "--no-rollback" in error
    _names_what_stays(toolkit, error)
    shown = json.loads(toolkit("describe", "-o", "json").stdout)
    assert shown["failure"]["kind"] == kind
    again = toolkit("create", "--yes", expect=1).stderr
    assert "toolkit cluster delete" in again


def test_without_rollback_the_head_node_stays(fresh: Callable[..., Any]) -> None:
    toolkit = fresh("3.16.1", outcome="node-script")
    told = toolkit("create", "--yes", "--no-rollback", expect=1).stderr
    assert "running, and billed: 1 c6i.2xlarge (head node), 2 p5en.48xlarge (gpu), 1 c6i.4xlarge" in told
    shown = json.loads(toolkit("describe", "-o", "json").stdout)
    assert shown["state"] == "CREATE_FAILED"
    assert "HeadNode" in [each["role"] for each in shown["instances"]]
    assert toolkit("describe", "--wait", expect=1).stderr.count("error: ") == 1
    toolkit("delete", "--yes")
    assert json.loads(toolkit("describe", "-o", "json").stdout)["state"] == "absent"


def _names_what_stays(toolkit: Any, error: str) -> None:
    """CloudFormation keeps the new file system and its security group after a rollback, too."""
    deadline = time.monotonic() + 60
    while (
        toolkit.client("cloudformation")
        .describe_stacks(StackName="pd-p5en")["Stacks"][0]["StackStatus"]
        .endswith("_IN_PROGRESS")
    ):
        assert time.monotonic() < deadline
    tag = "parallelcluster:cluster-name"
    systems = toolkit.client("fsx").describe_file_systems()["FileSystems"]
    (volume,) = [
        each["FileSystemId"] for each in systems if tag in {tag["Key"] for tag in each.get("Tags", ())}
    ]
    mine = [{"Name": f"tag:{tag}", "Values": ["pd-p5en"]}]
    groups = toolkit.client("ec2").describe_security_groups(Filters=mine)["SecurityGroups"]
    (group,) = [each["GroupId"] for each in groups]
    assert f"delete-file-system --region ap-south-1 --file-system-id {volume}" in error
    assert f"delete-security-group --region ap-south-1 --group-id {group}" in error
    assert "has taken it down" not in error


def test_nothing_is_told_as_staying_that_was_never_made(fresh: Callable[..., Any]) -> None:
    toolkit = fresh("3.14.2", outcome="denied")
    before = len(toolkit.client("fsx").describe_file_systems()["FileSystems"])
    toolkit("create", "--yes", expect=1)
    toolkit("delete", "--yes")
    assert len(toolkit.client("fsx").describe_file_systems()["FileSystems"]) == before
