"""Creations that fail: what the user is told, with the lines that prove it, and what can be done next."""

from __future__ import annotations

import json
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
    shown = json.loads(toolkit("describe", "-o", "json").stdout)
    assert shown["failure"]["kind"] == kind
    again = toolkit("create", "--yes", expect=1).stderr
    assert "toolkit cluster delete" in again


def test_without_rollback_the_head_node_stays(fresh: Callable[..., Any]) -> None:
    toolkit = fresh("3.16.1", outcome="node-script")
    told = toolkit("create", "--yes", "--no-rollback", expect=1).stderr
    assert "the head node still runs, and is billed" in told
    shown = json.loads(toolkit("describe", "-o", "json").stdout)
    assert shown["state"] == "CREATE_FAILED"
    assert "HeadNode" in [each["role"] for each in shown["instances"]]
    assert toolkit("describe", "--wait", expect=1).stderr.count("error: ") == 1
    toolkit("delete", "--yes")
    assert json.loads(toolkit("describe", "-o", "json").stdout)["state"] == "absent"
