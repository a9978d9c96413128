"""docs/doctor.md holds the table of checks as the registry has it; `pytest --golden` writes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.doctor.registry import CLUSTER_CHECKS, ENGINE_CHECKS, NODE_CHECKS, table

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
BEGIN, END = "<!-- checks: written by pytest --golden -->\n", "<!-- end of checks -->\n"


def test_the_page_has_every_check(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    if request.config.getoption("--golden"):
        PAGE.write_text(f"{head}{BEGIN}{table()}{END}{tail}", encoding="utf-8")
        return
    assert old == table(), "run pytest --golden tests/doctor/test_docs.py"


def test_names_of_checks_are_unique_and_grouped() -> None:
    names = [
        *(c.name for c in NODE_CHECKS),
        *(c.name for c in ENGINE_CHECKS),
        *(c.name for c in CLUSTER_CHECKS),
    ]
    assert len(names) == len(set(names))
    groups = [name.split(".")[0] for name in names]
    assert groups == sorted(groups, key=groups.index), "checks of one noun stand together"
