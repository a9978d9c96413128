"""The compiled form is asked for, and never lies in the source tree."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
HOOK = WHEEL["hooks"]["custom"]


def test_no_extension_module_hides_a_source() -> None:
    assert not [path for path in (ROOT / "toolkit").rglob("*") if path.suffix in (".so", ".pyd")]


def test_it_is_off_unless_it_is_asked_for() -> None:
    assert HOOK["enable-by-default"] is False


@pytest.mark.parametrize("pattern", HOOK["modules"])
def test_what_is_compiled_is_there(pattern: str) -> None:
    assert [path for path in ROOT.glob(pattern) if path.name != "__init__.py"]


def test_the_builds_mypy_is_the_one_that_checks_the_sources() -> None:
    (wanted,) = (each for each in HOOK["dependencies"] if each.startswith("mypy"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert wanted in project["optional-dependencies"]["dev"]


def test_an_editable_install_runs_the_sources() -> None:
    script = "from toolkit.router import app; print(app.__file__)"
    found = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == ROOT / "toolkit" / "router" / "app.py"
