"""A check: a small function, what it looks at and which report it comes from; and how checks are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from toolkit.doctor.finding import Finding, Severity, Unread, Verdict
from toolkit.doctor.wanted import Wanted

F = TypeVar("F")


def always(_facts: object, _wanted: Wanted) -> bool:
    return True


@dataclass(frozen=True)
class Check(Generic[F]):
    """`looks_at` completes "this check looks at ...". `judge` may raise Unread."""

    name: str
    looks_at: str
    source: str
    judge: Callable[[F, Wanted], Verdict | Sequence[Verdict]]
    applies: Callable[[F, Wanted], bool] = always


def run_checks(checks: Iterable[Check[F]], facts: F, wanted: Wanted) -> list[Finding]:
    """Every check that applies, in order; one whose facts can't be had gives one `unknown` finding."""
    return [
        finding for check in checks if check.applies(facts, wanted) for finding in _run(check, facts, wanted)
    ]


def _run(check: Check[F], facts: F, wanted: Wanted) -> list[Finding]:
    try:
        judged = check.judge(facts, wanted)
    except Unread as unread:
        judged = Verdict(
            Severity.UNKNOWN,
            f"can't tell: {unread.why}",
            cause="what this check reads could not be had",
            next_step=f"look by hand at {check.looks_at}",
        )
    verdicts = [judged] if isinstance(judged, Verdict) else judged
    return [
        Finding(
            check=check.name,
            severity=each.severity,
            symptom=each.symptom,
            evidence=each.evidence,
            cause=each.cause,
            next_step=each.next_step,
            source=each.source or check.source,
        )
        for each in verdicts
    ]
