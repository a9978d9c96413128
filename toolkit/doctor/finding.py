"""A finding: what a check says about what was read. The doctor's only product."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """`unknown`: what the check reads could not be had; it is never silently taken as ok."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """`evidence`: the lines that prove it, as they were read. `source`: what tells of it."""

    check: str
    severity: Severity
    symptom: str
    evidence: tuple[str, ...]
    cause: str
    next_step: str
    source: str


@dataclass(frozen=True)
class Verdict:
    """What a check's function says; with the check's name and source it is a Finding."""

    severity: Severity
    symptom: str
    evidence: tuple[str, ...] = ()
    cause: str = ""
    next_step: str = ""
    source: str = ""  # where it differs from the check's own


def ok(symptom: str, *evidence: str) -> Verdict:
    return Verdict(Severity.OK, symptom, evidence)


def error(symptom: str, *evidence: str, cause: str, next_step: str, source: str = "") -> Verdict:
    return Verdict(Severity.ERROR, symptom, evidence, cause, next_step, source)


def warning(symptom: str, *evidence: str, cause: str, next_step: str, source: str = "") -> Verdict:
    return Verdict(Severity.WARNING, symptom, evidence, cause, next_step, source)


class Unread(Exception):
    """Raised by facts that could not be had; the check that asked becomes `unknown`, with this reason."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
