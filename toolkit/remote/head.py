"""The head node: where Slurm's commands run and run folders are reached. The only way to it.

A Head does three things, run, put and get. `LocalHead` is this machine: the embedded cluster, or a login
to the head node itself.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from toolkit.errors import ToolkitError


@dataclass(frozen=True)
class Completed:
    returncode: int
    stdout: str
    stderr: str


# What a command, and through sbatch a job, takes from the user's shell. A token or a VLLM_* variable that
# happens to be set there must not reach a job: what a job needs is written in its script.
INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)


class Head(Protocol):
    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float = 60) -> Completed:
        """Runs a command to its end; raises ToolkitError if it can't be started or takes too long."""

    def put(self, path: PurePosixPath, text: str) -> None:
        """Writes a file whole, making its folders; raises ToolkitError when it can't."""

    def get(self, path: PurePosixPath, *, start: int = 0, tail: int | None = None) -> str | None:
        """A file's text from byte `start` on, or of its last `tail` bytes; None if there is no such file.
        Bytes that are no UTF-8 come as surrogates, so that encoding gives the file's bytes again."""

    def names(self, folder: PurePosixPath) -> list[str]:
        """Sorted names in a folder; empty if there is none."""

    def lock(self, path: PurePosixPath) -> AbstractContextManager[None]:
        """Holds a lock file, making its folder; raises ToolkitError while another process holds it. The lock
        ends with its holder, also with one that was killed."""


class LocalHead:
    """This machine. `environment` is added to that of every command, such as SLURM_CONF."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float = 60) -> Completed:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        try:
            done = subprocess.run(
                list(argv),
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env={**inherited, **self._environment},
                check=False,
            )
        except FileNotFoundError as error:
            raise ToolkitError(
                f"{argv[0]} is not on this machine.",
                next_step="`toolkit cluster create -f FILE` installs what the embedded target needs; for a "
                "ParallelCluster run this on its head node",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise ToolkitError(
                f"`{' '.join(argv[:3])}` gave no answer within {timeout:g} s.",
                next_step="is the Slurm controller up? `toolkit cluster describe -f FILE`",
            ) from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def put(self, path: PurePosixPath, text: str) -> None:
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
            ) as new:
                try:
                    new.write(text)
                    new.close()
                    Path(new.name).chmod(0o644)
                    Path(new.name).replace(target)
                except BaseException:
                    Path(new.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise _cannot_write(path, error) from error

    def get(self, path: PurePosixPath, *, start: int = 0, tail: int | None = None) -> str | None:
        try:
            with Path(path).open("rb") as file:
                file.seek(start if tail is None else max(0, file.seek(0, os.SEEK_END) - tail))
                return file.read().decode("utf-8", "surrogateescape")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ToolkitError(f"can't read {path}: {error.strerror}.") from error

    def names(self, folder: PurePosixPath) -> list[str]:
        try:
            return sorted(entry.name for entry in Path(folder).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ToolkitError(
                f"can't list {folder}: {error.strerror}.", next_step="set target.runs_dir to a folder"
            ) from error

    @contextmanager
    def lock(self, path: PurePosixPath) -> Iterator[None]:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise ToolkitError(
                f"another toolkit works in {path.parent} just now.",
                next_step="wait for it, or give another --name",
            ) from None
        finally:
            os.close(held)


def _cannot_write(path: PurePosixPath, error: OSError) -> ToolkitError:
    return ToolkitError(
        f"can't write {path}: {error.strerror}.",
        next_step="free space or set target.runs_dir to a folder that can be written",
    )
