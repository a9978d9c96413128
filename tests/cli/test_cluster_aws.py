"""`toolkit cluster` for AWS, as far as it goes without AWS: the dry run, and what is refused at once."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli.cluster import cli
from toolkit.errors import SettingsError
from toolkit.flows.cluster_progress import creation_phase, failed_resources, news
from toolkit.remote.pcluster_answer import StackEvent

ROOT = Path(__file__).parents[2]
DEPLOYMENTS = ROOT / "deployments"
SHIPPED = ("qwen3-32b-p5en", "glm-5-fp8-p5en")
VERSIONS = ("3.14.2", "3.16.1")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where every connection of a process would arrive."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        yield server


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SHIPPED)
def test_dry_run_is_offline_and_prints_the_very_configuration(
    name: str, version: str, tmp_path: Path, listener: socket.socket
) -> None:
    """No AWS, no pcluster, no network: whoever is asked would be the listener."""
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    code = "from toolkit.cli import main; main()"
    arguments = ["cluster", "create", "-f", str(DEPLOYMENTS / f"{name}.yaml"), "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--set", f"target.version={version}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "PATH": "/nowhere",
            "HOME": str(tmp_path),
            "TOOLKIT_CACHE": str(tmp_path / "cache"),
            **dict.fromkeys(("AWS_ENDPOINT_URL", "HTTPS_PROXY", "HTTP_PROXY", "https_proxy"), url),
        },
        check=True,
    )
    golden = ROOT / "tests" / "golden" / "cluster" / f"{name}-{version}.yaml"
    assert done.stdout == golden.read_text()
    assert "AMI_OF_pd-" in done.stderr
    assert "error" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BlockingIOError):
        listener.accept()


def aws(verb: str, *more: str) -> list[str]:
    return [verb, "-f", str(DEPLOYMENTS / f"{SHIPPED[0]}.yaml"), *more]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (aws("create", "--force"), "--force is for the embedded target only"),
        (aws("delete", "--purge"), "--purge is for the embedded target only"),
        (aws("create", "--check"), "--check goes with --dry-run"),
    ],
)
def test_options_that_would_change_nothing_are_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_a_dry_run_with_a_mistake_prints_the_text_and_ends_with_the_mistake() -> None:
    """Found without AWS: a reservation without an id."""
    arguments = aws("create", "--dry-run", "--set", "target.capacity.reservation=null")
    with pytest.raises(SettingsError, match=r"target\.capacity\.reservation"):
        CliRunner().invoke(cli, arguments, catch_exceptions=False)


def event(resource: str, kind: str, status: str, reason: str = "") -> StackEvent:
    return StackEvent(resource + status, datetime(2026, 1, 1, tzinfo=UTC), resource, kind, "", status, reason)


HEAD, WAIT = "AWS::EC2::Instance", "AWS::CloudFormation::WaitCondition"


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ([], "making network interfaces, roles and storage"),
        ([event("HeadNode", HEAD, "CREATE_IN_PROGRESS")], "starting the head node"),
        ([event("HeadNode", HEAD, "CREATE_COMPLETE")], "the head node sets itself up"),
        (
            [event("HeadNode", HEAD, "CREATE_COMPLETE"), event("W", WAIT, "CREATE_COMPLETE")],
            "finishing",
        ),
    ],
)
def test_phases_of_a_creation(events: list[StackEvent], phase: str) -> None:
    assert creation_phase(events, (), 3) == phase


def test_what_was_only_cancelled_did_not_fail() -> None:
    failed = event("HeadNode", HEAD, "CREATE_FAILED", "no capacity")
    events = [
        event("Role", "AWS::IAM::Role", "CREATE_FAILED", "Resource creation cancelled"),
        failed,
        event("pd", "AWS::CloudFormation::Stack", "CREATE_FAILED", "The following resource(s) failed"),
    ]
    assert failed_resources(events) == (failed,)


def test_landmarks_and_failures_are_told_singly_the_rest_is_counted() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    seen = [
        event("Role", "AWS::IAM::Role", "CREATE_COMPLETE"),
        event("Group", "AWS::EC2::SecurityGroup", "CREATE_IN_PROGRESS"),
        event("Group", "AWS::EC2::SecurityGroup", "CREATE_COMPLETE"),
        event("FSX1", "AWS::FSx::FileSystem", "CREATE_COMPLETE"),
        event("HeadNode", "AWS::EC2::Instance", "CREATE_IN_PROGRESS"),
        event("Alarm", "AWS::CloudWatch::Alarm", "CREATE_FAILED", "no such metric"),
    ]
    assert sorted(news(seen, start)) == [
        "[00:00] 2 resources made, last Group",
        "[00:00] CREATE_COMPLETE FSX1 (AWS::FSx::FileSystem)",
        "[00:00] CREATE_FAILED Alarm (AWS::CloudWatch::Alarm): no such metric",
    ]
    assert news([], start) == []
