"""Why an image's build failed: from the log of our own steps, else from the stack's events. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolkit.errors import ToolkitError
from toolkit.flows.image import ImageState
from toolkit.remote.pcluster_answer import StackEvent

# What ami-setup/lib.sh writes when a step ends badly: [50-cuda] ERROR: WHAT: expected X, found Y; NEXT
OWN_ERROR = re.compile(r"\[(\d\d-[\w-]+|component)\] ERROR: (?P<told>.*?)(?:; (?P<next>[^;]*))?$")
ANY_ERROR = re.compile(r"\berror\b|\bfailed\b|^E: |No space left|Unable to ", re.IGNORECASE)
LINES_SHOWN = 6

# Reasons of resources, and of the stack, that only follow from another one's.
SECONDARY = ("Resource creation cancelled", "The following resource(s) failed")
# Reasons that EC2 gives to CloudFormation or Image Builder, and what helps.
REASONS = (
    (
        r"InsufficientInstanceCapacity|sufficient .* capacity",
        "the zone has no such instance free at the moment: try again later, or set "
        "target.image.build_instance_type to another type with an NVIDIA GPU",
    ),
    (
        r"VcpuLimitExceeded|vCPU (?:capacity|limit)",
        "raise the quota 'Running On-Demand G and VT instances' of the account in that region",
    ),
    (
        r"not authorized|AccessDenied|UnauthorizedOperation",
        "let an administrator allow the action that is named",
    ),
)


def explain_failure(state: ImageState, events: Sequence[StackEvent], lines: Sequence[str]) -> ToolkitError:
    """The error to raise for a build that ended as `state`: cause, the lines that prove it, next step."""
    reasons = [
        event.reason
        for event in events
        if event.status.endswith("_FAILED") and event.reason and not event.reason.startswith(SECONDARY)
    ]
    again = (
        "then `toolkit image build --rebuild` removes what is left of this one and starts anew; the whole "
        f"log is log group {state.log_group} in CloudWatch"
    )
    own = next((match for line in reversed(lines) if (match := OWN_ERROR.search(line))), None)
    if own:
        advice = own["next"] or "correct what it names"
        return ToolkitError(
            f"image {state.name}: {own[1]} failed: {own['told']}\n{_quoted(_around(lines, own.string))}",
            next_step=f"{advice}; {again}",
        )
    evidence = [line for line in lines if ANY_ERROR.search(line)][-LINES_SHOWN:] or list(lines[-LINES_SHOWN:])
    cause = next(iter(reasons), "") or state.reason or f"its build ended as {state.status}"
    advice = next((help_ for pattern, help_ in REASONS if re.search(pattern, cause)), "correct the cause")
    return ToolkitError(
        f"image {state.name} could not be built: {cause}\n{_quoted(evidence)}".rstrip(),
        next_step=f"{advice}; {again}",
    )


def _around(lines: Sequence[str], failed: str) -> Sequence[str]:
    """The failed line and those before it."""
    end = len(lines) - list(reversed(lines)).index(failed)
    return lines[max(0, end - LINES_SHOWN) : end]


def _quoted(lines: Sequence[str]) -> str:
    return "\n".join(f"  | {line}" for line in lines)
