"""Why an image's build failed, from what its log and its stack's events say."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from toolkit.flows.image import ImageState
from toolkit.flows.image_failure import explain_failure
from toolkit.remote.pcluster_answer import StackEvent

STATE = ImageState("pd", "BUILD_FAILED", "", "", {}, "", "/aws/imagebuilder/ParallelClusterImage-pd", None)
LINES = [
    "Stdout: 2026-01-01 00:10:02 [10-hold-kernel] done: kernel is held",
    "Stdout: 2026-01-01 00:12:00 [60-efa] begin: EFA installer 1.50.0",
    "Stderr: curl: (22) The requested URL returned error: 403",
    "Stderr: 2026-01-01 00:12:09 [60-efa] ERROR: download: expected https://efa/x.tar.gz, found an error "
    "of curl; check the address and the instance's way out (NAT, proxy)",
    "Document failed: Step 'Script' failed: exit status 1",
]


def event(reason: str, resource: str = "ParallelClusterImage", status: str = "CREATE_FAILED") -> StackEvent:
    return StackEvent("1", datetime.now(UTC), resource, "AWS::ImageBuilder::Image", "", status, reason)


def test_our_own_steps_error_is_the_cause_with_the_lines_before_it() -> None:
    told = explain_failure(STATE, [event("Workflow failed")], LINES)
    assert "60-efa failed: download: expected https://efa/x.tar.gz, found an error of curl" in told.what
    assert "  | Stderr: curl: (22) The requested URL returned error: 403" in told.what
    assert "Document failed" not in told.what
    assert told.next_step.startswith("check the address and the instance's way out (NAT, proxy); ")
    assert "--rebuild" in told.next_step
    assert STATE.log_group in told.next_step


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (
            "We currently do not have sufficient g6.4xlarge capacity in the Availability Zone you requested",
            "target.image.build_instance_type",
        ),
        (
            "You have requested more vCPU capacity than your current vCPU limit of 0 allows",
            "raise the quota 'Running On-Demand G and VT instances'",
        ),
        ("User: x is not authorized to perform: ec2:RunInstances", "administrator"),
    ],
)
def test_what_ec2_refuses_has_its_own_advice(reason: str, advice: str) -> None:
    events = [
        event("Resource creation cancelled", "Other"),
        event(reason),
        event("The following resource(s) failed to create: [ParallelClusterImage].", "pd"),
    ]
    told = explain_failure(STATE, events, [])
    assert told.what == f"image pd could not be built: {reason}"
    assert advice in told.next_step


def test_without_events_the_lines_that_look_like_errors_are_shown() -> None:
    lines = ["fine", "E: Unable to locate package cuda-toolkit-13-0", "also fine"]
    told = explain_failure(STATE, [], lines)
    assert "its build ended as BUILD_FAILED" in told.what
    assert "  | E: Unable to locate package cuda-toolkit-13-0" in told.what
    assert "| fine" not in told.what


def test_without_anything_it_still_says_where_to_look() -> None:
    told = explain_failure(STATE, [], [])
    assert told.what == "image pd could not be built: its build ended as BUILD_FAILED"
    assert STATE.log_group in told.next_step
