"""pcluster's environment: when it is made, begun again or refused, and which Node.js it takes.

An install is a real pip's, of a package made here: the real aws-parallelcluster is in test_pcluster.py.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.remote.pcluster_env import STAMP, PclusterEnv, default_base, ensure_pcluster, machine_node

VERSION = "3.14.2"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def node(folder: Path, version: str) -> str:
    """A PATH whose `node` says that version."""
    script(folder / "node", f"echo {version}")
    return str(folder)


def complete(base: Path, version: str = VERSION) -> Path:
    folder = base / version
    script(folder / "bin" / "pcluster", "exit 0")
    (folder / STAMP).write_text(json.dumps({"version": version, "state": "complete"}))
    return folder


def no_progress(message: str) -> None:
    raise AssertionError(f"nothing should be made: {message}")


def broken_python(folder: Path) -> str:
    """A Python whose `-m venv` gives an environment without an index, so that pip fails."""
    real = sys.executable
    pip = "#!/bin/sh\\necho ERROR: No matching distribution found\\nexit 1\\n"
    body = f"""
case "$1" in
-c) exec {real} "$@" ;;
-m) mkdir -p "$3/bin"; printf '{pip}' > "$3/bin/python"; chmod +x "$3/bin/python" ;;
esac"""
    return str(script(folder / "python", body))


@pytest.mark.parametrize("version", ["v18.17.0", "v20.20.2", "v22.1.0", "v24.19.0"])
def test_machine_node_is_used(tmp_path: Path, version: str) -> None:
    assert machine_node(node(tmp_path, version)) == tmp_path / "node"


@pytest.mark.parametrize("version", ["v16.20.0", "v18.16.1", "v25.0.0", "unknown"])
def test_machine_node_that_cdk_does_not_take(tmp_path: Path, version: str) -> None:
    assert machine_node(node(tmp_path, version)) is None


def test_machine_without_node(tmp_path: Path) -> None:
    assert machine_node(str(tmp_path)) is None
    script(tmp_path / "node", "exit 1")
    assert machine_node(str(tmp_path)) is None


def test_complete_environment_is_used_at_once(tmp_path: Path) -> None:
    folder = complete(tmp_path)
    path = node(tmp_path / "path", "v20.20.2")
    env = ensure_pcluster(VERSION, no_progress, base=tmp_path, path=path)
    assert env == PclusterEnv(VERSION, folder, folder / "bin" / "pcluster", tmp_path / "path" / "node")


def test_base_is_the_cache(tmp_path: Path) -> None:
    kept = os.environ.get("TOOLKIT_CACHE")
    os.environ["TOOLKIT_CACHE"] = str(tmp_path)
    try:
        assert default_base() == tmp_path / "pcluster"
        del os.environ["TOOLKIT_CACHE"]
        assert default_base() == Path.home() / ".cache" / "pd-toolkit" / "pcluster"
    finally:
        if kept is not None:
            os.environ["TOOLKIT_CACHE"] = kept


@pytest.mark.parametrize("version", ["3.14", "latest", "3.14.2; rm", "../x"])
def test_a_version_is_three_numbers(tmp_path: Path, version: str) -> None:
    with pytest.raises(ToolkitError, match="no version of ParallelCluster"):
        ensure_pcluster(version, no_progress, base=tmp_path)


def test_failed_pip_is_told_with_its_end_and_begun_again(tmp_path: Path) -> None:
    python = broken_python(tmp_path / "python")
    path = node(tmp_path / "path", "v20.20.2")
    for _ in range(2):
        told: list[str] = []
        with pytest.raises(ToolkitError, match="No matching distribution found") as error:
            ensure_pcluster(VERSION, told.append, base=tmp_path / "base", python=python, path=path)
        log = tmp_path / "base" / f"{VERSION}.install.log"
        assert str(log) in error.value.next_step
        assert str(log) in told[0]
        (tmp_path / "base" / VERSION / "left-over").write_text("")
    assert json.loads((tmp_path / "base" / VERSION / STAMP).read_text())["state"] == "installing"


@pytest.mark.parametrize("stamp", [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe", b"{}"])
def test_a_garbled_stamp_counts_as_not_installed(tmp_path: Path, stamp: bytes) -> None:
    folder = complete(tmp_path)
    (folder / STAMP).write_bytes(stamp)
    told: list[str] = []
    with pytest.raises(ToolkitError, match="No matching distribution found"):
        ensure_pcluster(
            VERSION,
            told.append,
            base=tmp_path,
            python=broken_python(tmp_path / "python"),
            path=node(tmp_path / "path", "v20.20.2"),
        )
    assert "installing" in told[0]


def installing_python(folder: Path, pcluster: str) -> str:
    """A Python whose `-m venv` is empty, whose pip writes down its environment and makes that `pcluster`."""
    real, made = sys.executable, folder / "pcluster"
    script(made, pcluster)
    inner = script(
        folder / "inner", f'env >> {folder}/env; cp {made} "${{0%/*}}/pcluster" 2>/dev/null || true'
    )
    body = f"""
env >> {folder}/env
case "$1" in
-c) exec {real} "$@" ;;
-m) mkdir -p "$3/bin"; cp {inner} "$3/bin/python" ;;
esac"""
    return str(script(folder / "python", body))


MISLEADING = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"),
    *("PIP_NO_DEPS", "PIP_PYTHON", "PIP_DRY_RUN", "PIP_REQUIRE_VIRTUALENV", "PIP_IGNORE_INSTALLED"),
)


def test_variables_that_lead_pip_elsewhere_are_kept_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MISLEADING:
        monkeypatch.setenv(name, str(tmp_path / "misled"))
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    python = installing_python(
        tmp_path / "python", f"""env >> {tmp_path}/python/env; echo '{{"version": "{VERSION}"}}'"""
    )
    path = node(tmp_path / "path", "v20.20.2")
    ensure_pcluster(VERSION, lambda _: None, base=tmp_path / "base", python=python, path=path)
    seen = (tmp_path / "python" / "env").read_text().splitlines()
    assert {line.split("=")[0] for line in seen} & {*MISLEADING} == set()
    assert "PIP_USER=1" not in seen
    assert seen.count("PIP_INDEX_URL=http://127.0.0.1:9/simple") == 4, "the check, venv, pip and pcluster"
    assert ensure_pcluster(VERSION, no_progress, base=tmp_path / "base", path=path)


@pytest.mark.parametrize(
    ("pcluster", "told"),
    [
        ("echo ModuleNotFoundError: No module named yaml >&2; exit 1", "No module named yaml"),
        ("""echo '{"version": "3.14.20"}'""", r"3\.14\.20"),
        ("exit 0", "ended with 0"),
    ],
)
def test_what_does_not_run_is_never_complete(tmp_path: Path, pcluster: str, told: str) -> None:
    python = installing_python(tmp_path / "python", pcluster)
    path = node(tmp_path / "path", "v20.20.2")
    for _ in range(2):
        lines: list[str] = []
        with pytest.raises(ToolkitError, match=rf"`pcluster version` .*{told}") as error:
            ensure_pcluster(VERSION, lines.append, base=tmp_path / "base", python=python, path=path)
        assert "installing" in lines[0], "each time anew"
        assert ".install.log" in error.value.next_step
    assert json.loads((tmp_path / "base" / VERSION / STAMP).read_text())["state"] == "installing"


def test_interrupted_install_leaves_nothing_of_the_old(tmp_path: Path) -> None:
    folder = complete(tmp_path)
    (folder / STAMP).write_text(json.dumps({"version": VERSION, "state": "installing"}))
    (folder / "half").mkdir()
    with pytest.raises(ToolkitError):
        ensure_pcluster(
            VERSION,
            lambda _: None,
            base=tmp_path,
            python=broken_python(tmp_path / "python"),
            path=node(tmp_path / "path", "v20.20.2"),
        )
    assert not (folder / "half").exists()
    assert not (folder / "bin" / "pcluster").exists()


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / VERSION).mkdir()
    (tmp_path / VERSION / "thesis.txt").write_text("mine")
    with pytest.raises(ToolkitError, match="the toolkit did not make it"):
        ensure_pcluster(VERSION, no_progress, base=tmp_path, path=node(tmp_path / "path", "v20.20.2"))
    assert (tmp_path / VERSION / "thesis.txt").read_text() == "mine"


def test_a_python_without_wheels_is_refused(tmp_path: Path) -> None:
    python = str(script(tmp_path / "python3.99", "echo 3 99"))
    with pytest.raises(ToolkitError, match=r"Python 3\.9 to 3\.13; .* is 3\.99"):
        ensure_pcluster(VERSION, no_progress, base=tmp_path / "base", python=python)


def test_a_base_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolkitError, match="can't write") as error:
        ensure_pcluster(VERSION, no_progress, base=tmp_path / "file" / "base")
    assert "TOOLKIT_CACHE" in error.value.next_step


@pytest.mark.aws
def test_a_node_is_brought_where_the_machine_has_none(tmp_path: Path) -> None:
    folder = complete(tmp_path / "base")
    make_venv: Mapping[str, Callable[..., object]] = {"venv": __import__("venv").create}
    shutil.rmtree(folder / "bin")
    make_venv["venv"](folder, with_pip=True)
    script(folder / "bin" / "pcluster", "exit 0")
    told: list[str] = []
    env = ensure_pcluster(VERSION, told.append, base=tmp_path / "base", path=str(tmp_path))
    assert machine_node(str(env.node.parent)) == env.node
    assert folder in env.node.parents
    assert "no Node.js from 18 to 24" in told[0]
    assert ensure_pcluster(VERSION, no_progress, base=tmp_path / "base", path=str(tmp_path)) == env
