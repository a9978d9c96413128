"""`toolkit cluster fleet` as far as it goes without AWS, and that hints name only what the user has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli.cluster import cli

ROOT = Path(__file__).parents[2]
PCLUSTERS = r"`pcluster [a-z]"  # pcluster is in an environment of the toolkit's own, not on PATH


@pytest.mark.parametrize("action", ["start", "stop"])
def test_the_embedded_cluster_has_no_fleet(action: str) -> None:
    arguments = ["fleet", "-f", str(ROOT / "deployments" / "embedded.yaml"), action, "--yes"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert "the embedded cluster, which is this machine" in done.stderr


def test_an_action_is_named() -> None:
    arguments = ["fleet", "-f", str(ROOT / "deployments" / "qwen3-32b-p5en.yaml")]
    assert CliRunner().invoke(cli, arguments).exit_code == 2
    assert "'start', 'stop'" in CliRunner().invoke(cli, [*arguments, "restart"]).stderr


def next_steps(tree: ast.AST) -> Iterator[str]:
    """What is told: every text but docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_hint_names_a_command_of_pclusters() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted((ROOT / "toolkit").rglob("*.py"))
        if "testing" not in path.parts
        for text in next_steps(ast.parse(path.read_text(encoding="utf-8")))
        # Of what it tried to run itself, an error may say `pcluster VERB`.
        if re.search(PCLUSTERS + r"[a-z]*-", text)
    ]
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "pcluster update-" in path.read_text()]
    assert found == []
    assert pages == []
