"""The archive that an image build installs: the same each time, and wheels that pip takes."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from importlib import metadata
from pathlib import Path

import pytest

from toolkit import __version__
from toolkit.errors import ToolkitError
from toolkit.render.payload import connector, render_payload, this_toolkit

ROOT = Path(__file__).parents[2]


def test_the_same_sources_give_the_same_bytes() -> None:
    first, second = render_payload(), render_payload()
    assert first.content == second.content
    assert first.sha256 == second.sha256


def test_it_holds_both_wheels_owned_by_root_and_without_times() -> None:
    payload = render_payload()
    with tarfile.open(fileobj=io.BytesIO(payload.content)) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == [f"wheels/{name}" for name in sorted(payload.wheels)]
    assert sorted(name.split("-")[0] for name in payload.wheels) == ["pd_connector", "pd_toolkit"]
    assert {(member.mtime, member.uid, member.uname, member.mode) for member in members} == {
        (0, 0, "root", 0o644)
    }


def test_neither_caches_nor_tests_are_sent() -> None:
    for wheel in (connector(), this_toolkit()):
        parts = {part for path in wheel.files for part in path.split("/")}
        assert not parts & {"__pycache__", "tests", ".pytest_cache", ".ruff_cache"}
        assert not any(path.endswith(".pyc") for path in wheel.files)


def test_the_wheel_of_a_compiled_toolkit_is_pure(tmp_path: Path) -> None:
    package = tmp_path / "toolkit"
    for name in ("app.py", "app.cpython-312-x86_64-linux-gnu.so", "app.cp312-win_amd64.pyd"):
        (package / "router").mkdir(parents=True, exist_ok=True)
        (package / "router" / name).write_bytes(b"")
    assert list(this_toolkit(package).files) == ["toolkit/router/app.py"]


def test_a_changed_source_changes_the_digest(tmp_path: Path) -> None:
    source = _connector_copy(tmp_path)
    before = connector(source).wheel()
    (source / "src" / "pd_connector" / "plugin.py").write_text("changed = True\n")
    assert connector(source).wheel() != before


def test_a_checkout_without_the_connector_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"pyproject\.toml is not there"):
        connector(tmp_path)


def test_the_checkouts_own_metadata_is_taken() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = message_from_string(this_toolkit().metadata)
    assert (told["Name"], told["Version"]) == ("pd-toolkit", __version__)
    assert told.get_all("Requires-Dist") == project["dependencies"]
    assert told["Requires-Python"] == project["requires-python"]
    assert this_toolkit().entry_points == "[console_scripts]\ntoolkit = toolkit.cli:main\n"


def test_without_a_checkout_the_installed_metadata_is_taken(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "toolkit"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    wheel = this_toolkit(package)
    installed = metadata.distribution("pd-toolkit")
    assert wheel.metadata == installed.read_text("METADATA")
    assert wheel.version == installed.version
    assert set(wheel.files) == {"toolkit/__init__.py"}


def test_every_file_of_a_wheel_is_in_its_record() -> None:
    with zipfile.ZipFile(io.BytesIO(this_toolkit().wheel())) as wheel:
        assert wheel.testzip() is None
        record = next(name for name in wheel.namelist() if name.endswith("/RECORD"))
        listed = {line.split(",")[0] for line in wheel.read(record).decode().splitlines()}
        assert listed == set(wheel.namelist())


def test_pip_installs_both_and_they_run(tmp_path: Path) -> None:
    wheels = []
    for each in (connector(), this_toolkit()):
        path = tmp_path / each.wheel_name
        path.write_bytes(each.wheel())
        wheels.append(str(path))
    place = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", str(place), *wheels], check=True)
    script = (
        "from importlib.metadata import distributions; import toolkit, toolkit.data\n"
        f"found = {{d.name: d for d in distributions(path=[{str(place)!r}])}}\n"
        "print(toolkit.__file__); print(toolkit.data.shipped('ami-setup', 'versions.yaml').is_file())\n"
        "print(found['pd-connector'].entry_points)\n"
        "print(found['pd-toolkit'].version)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(place)},
    )
    where, data, points, version = done.stdout.splitlines()
    assert where == str(place / "toolkit" / "__init__.py")
    assert data == "True"
    assert "pd_connector.plugin:register" in points
    assert "vllm.general_plugins" in points
    assert version == __version__


def _connector_copy(folder: Path) -> Path:
    source = folder / "connector"
    for path, content in connector().files.items():
        target = source / "src" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (source / "pyproject.toml").write_text((ROOT / "connector" / "pyproject.toml").read_text())
    return source
