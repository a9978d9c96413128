"""`toolkit cluster fleet`: stopped, started, started out of PROTECTED, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.aws, pytest.mark.slow]


def nodes(toolkit: Any) -> list[str]:
    shown = json.loads(toolkit("describe", "-o", "json").stdout)
    return [shown["fleet"], *sorted(each["role"] for each in shown["instances"])]


def test_stopped_and_started(fresh: Callable[..., Any]) -> None:
    toolkit = fresh("3.14.2", create_seconds=1)
    told = toolkit("fleet", "stop", "--yes", expect=2).stderr
    assert "there is no cluster pd-p5en in ap-south-1" in told
    toolkit("create", "--yes")
    running = nodes(toolkit)
    assert running.count("Compute") >= 2
    asked = toolkit("fleet", "stop", expect=2).stderr
    assert "nodes are terminated, and every job on them ends" in asked
    assert nodes(toolkit) == running, "nothing happens before the answer"

    stopped = toolkit("fleet", "stop", "--yes")
    assert stopped.stdout == "STOPPED\n"
    assert "is STOPPING" in stopped.stderr
    assert nodes(toolkit) == ["STOPPED", "HeadNode"]
    assert toolkit("fleet", "stop", "--yes", "-o", "json").stdout.split() == [
        *("{", '"cluster":', '"pd-p5en",', '"fleet":', '"STOPPED"', "}"),
    ]
    toolkit("update", "--yes")
    left = toolkit("fleet", "start", "--no-wait")
    assert left.stdout == "START_REQUESTED\n"
    assert "`toolkit cluster describe -f" in left.stderr
    assert toolkit("fleet", "start").stdout == "RUNNING\n"
    assert nodes(toolkit) == running


def test_started_out_of_protected_mode(fresh: Callable[..., Any]) -> None:
    toolkit = fresh("3.16.1", create_seconds=1)
    toolkit("create", "--yes")
    table = toolkit.client("dynamodb")
    data = {"status": {"S": "PROTECTED"}, "lastStatusUpdatedTime": {"S": "2026-01-01 00:00:00.000001+00:00"}}
    item = {"Id": {"S": "COMPUTE_FLEET"}, "Data": {"M": data}}
    table.put_item(TableName="parallelcluster-pd-p5en", Item=item)
    started = toolkit("fleet", "start")
    assert "is PROTECTED" in started.stderr
    assert started.stdout == "RUNNING\n"
