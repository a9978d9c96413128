"""docs/checks.md is written from the cases, so each line of it has been tried; --golden writes it anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.preflight.problem import Problem

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
HEAD = """\
# What is checked before a cluster is made

<!-- Written by `pytest tests/preflight/test_docs.py --golden` from tests/preflight/cases. -->

`toolkit cluster create` and `update` stop at an error before any call that makes or changes something.
Warnings are listed, and creation goes on after the usual question. `--dry-run` without AWS makes the checks
that need no AWS. A check whose facts AWS refuses to tell becomes a warning that names it.

Each message also says where its value came from: the file and line, `--set`, the environment, or the default.
ParallelCluster's own validation follows; what it says is shown too. Not checked by anybody before creation:
whether AWS has capacity outside a reservation, and what IAM lets the creating user do.
"""
TITLES = {
    "capacity": "Capacity",
    "network": "Network",
    "new_network": "A network that is made",
    "nodes": "Nodes",
    "image": "Image and version",
    "storage": "Storage",
    "scripts": "Scripts and buckets",
    "access": "Name, key and access",
    "document": "Overrides",
}


def page(cases: list[Any], problems: Callable[[Any], tuple[Problem, ...]]) -> str:
    parts = [HEAD]
    for noun, title in TITLES.items():
        parts.append(f"\n## {title}\n\n| mistake | level | message | next |\n|---|---|---|---|\n")
        parts += [row(case, problems) for case in cases if case.id.startswith(f"{noun}: ")]
    return "".join(parts)


def row(case: Any, problems: Callable[[Any], tuple[Problem, ...]]) -> str:
    if case.refused:
        cells = [case.mistake, "settings", f"{case.key}: ... {case.reason}", case.next]
    else:
        found = next(
            each
            for each in problems(case)
            if (each.level, each.key) == (case.level, case.key) and case.reason in each.reason
        )
        given = f"{found.key} = {found.value}: " if found.key else ""
        cells = [case.mistake, found.level, given + found.reason, found.next_step]
    return "| " + " | ".join(map(cell, cells)) + " |\n"


def cell(text: str) -> str:
    """A script's name holds a digest of its text, which this page must not depend on."""
    return re.sub(r"verify-[0-9a-f]{12}", "verify-DIGEST", text).replace("|", "\\|")


def test_the_page_is_what_the_cases_say(
    cases: list[Any], problems: Callable[[Any], tuple[Problem, ...]], request: pytest.FixtureRequest
) -> None:
    assert {case.id.partition(":")[0] for case in cases} == set(TITLES)
    text = page(cases, problems)
    if request.config.getoption("--golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text
