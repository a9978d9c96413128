"""A real cluster with real engines for the tests of this folder, beside whatever a user runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOYMENT = ROOT / "deployments" / "embedded.yaml"

Toolkit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pd")


@pytest.fixture(scope="session")
def toolkit(folder: Path) -> Iterator[Toolkit]:
    """Runs the command in a folder of its own: `toolkit("job", "submit", settings=["kv...=..."])`. The
    cluster is up, and taken down at the end."""

    def run(*args: str, settings: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        own = (
            f"target.engine_env={ROOT / '.venv-engine'}",
            "target.network=10.79.0.0/24",
            "target.slurm_port=16827",
            *settings,
        )
        sets = [word for setting in own for word in ("--set", setting)]
        return subprocess.run(
            [sys.executable, "-m", "toolkit", *args, "-f", str(DEPLOYMENT), *sets],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONWARNINGS": "default"},
            check=False,
        )

    created = run("cluster", "create")
    assert created.returncode == 0, created.stderr
    yield run
    # Not --purge: the engine environment is the developer's.
    deleted = run("cluster", "delete", "--yes")
    assert deleted.returncode == 0, deleted.stderr
    assert working_for(folder) == []


def working_for(folder: Path) -> list[str]:
    """Command lines of processes that work for a folder: engines, routers, clients, Slurm."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environ = (path / "environ").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if int(path.name) != os.getpid() and (str(folder) in command or f"SLURM_CONF={folder}" in environ):
            found.append(f"{path.name} {command}")
    return found


@pytest.fixture
def processes(folder: Path) -> Callable[[], list[str]]:
    return lambda: working_for(folder)
