"""The head node: where Slurm's commands run and run folders are reached. The only way to it.

`LocalHead` is this machine: the embedded cluster, or a login to the head node itself. `SshHead` of
ssh_head.py is any other. Both behave alike, which one suite of tests holds them to.
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
# happens to be set there must not reach a job: what a job needs is written in its script. SLURM_CONF is
# where a site's Slurm is.
INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE"),
    "SLURM_CONF",
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)


class Head(Protocol):
    def run(
        self, argv: Sequence[str], *, stdin: str = "", timeout: float = 60, repeat: bool = False
    ) -> Completed:
        """Runs a command to its end; raises ToolkitError if it can't be started or takes too long.
        `repeat`: running it twice does no harm, so that it may be run again when a connection drops."""

    def put(self, path: PurePosixPath, text: str, *, mode: int = 0o644) -> None:
        """Writes a file whole, making its folders; raises ToolkitError when it can't. A file that others may
        not read is so from its first byte on."""

    def get(
        self, path: PurePosixPath, *, start: int = 0, tail: int | None = None, limit: int | None = None
    ) -> str | None:
        """A file's text from byte `start` on, or of its last `tail` bytes, `limit` bytes at most; None if
        there is no such file. Bytes that are no UTF-8 come as surrogates, so that encoding gives the file's
        bytes again."""

    def size(self, path: PurePosixPath) -> int | None:
        """Bytes of a file; None if there is no such file."""

    def names(self, folder: PurePosixPath) -> list[str]:
        """Sorted names in a folder; empty if there is none."""

    def lock(self, path: PurePosixPath) -> AbstractContextManager[None]:
        """Holds a lock file, making its folder; raises ToolkitError while another process holds it. The lock
        ends with its holder, also with one that was killed."""

    def tunnel(self, host: str, port: int, *, local_port: int = 0) -> AbstractContextManager[str]:
        """A URL that reaches a port of the head node's network from this machine, while the block runs.
        `local_port`: of this machine, where one is opened; 0 takes a free one."""


class LocalHead:
    """This machine. `environment` is added to that of every command, such as SLURM_CONF."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        timeout: float = 60,
        repeat: bool = False,  # noqa: ARG002
    ) -> Completed:
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
                "ParallelCluster set target.ssh.host, or leave it out to ask AWS",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise no_answer(argv, timeout) from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def put(self, path: PurePosixPath, text: str, *, mode: int = 0o644) -> None:
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
            ) as new:
                try:
                    new.write(text)
                    new.close()
                    Path(new.name).chmod(mode)
                    Path(new.name).replace(target)
                except BaseException:
                    Path(new.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise cannot_write(path, error.strerror or str(error)) from error

    def get(
        self, path: PurePosixPath, *, start: int = 0, tail: int | None = None, limit: int | None = None
    ) -> str | None:
        try:
            with Path(path).open("rb") as file:
                file.seek(start if tail is None else max(0, file.seek(0, os.SEEK_END) - tail))
                return file.read(-1 if limit is None else limit).decode("utf-8", "surrogateescape")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise cannot_read(path, error.strerror or str(error)) from error

    def size(self, path: PurePosixPath) -> int | None:
        try:
            return Path(path).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise cannot_read(path, error.strerror or str(error)) from error

    def names(self, folder: PurePosixPath) -> list[str]:
        try:
            return sorted(entry.name for entry in Path(folder).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise cannot_list(folder, error.strerror or str(error)) from error

    @contextmanager
    def lock(self, path: PurePosixPath) -> Iterator[None]:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise cannot_write(path, error.strerror or str(error)) from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise held_by_another(path) from None
        finally:
            os.close(held)

    @contextmanager
    def tunnel(self, host: str, port: int, *, local_port: int = 0) -> Iterator[str]:  # noqa: ARG002
        yield f"http://{host}:{port}"


def no_answer(argv: Sequence[str], timeout: float) -> ToolkitError:
    return ToolkitError(
        f"`{' '.join(argv[:3])}` gave no answer within {timeout:g} s.",
        next_step="is the Slurm controller up? `toolkit cluster describe -f FILE`",
    )


def cannot_write(path: PurePosixPath, reason: str) -> ToolkitError:
    return ToolkitError(
        f"can't write {path}: {reason}.",
        next_step="free space or set target.runs_dir to a folder that can be written",
    )


def cannot_read(path: PurePosixPath, reason: str) -> ToolkitError:
    return ToolkitError(f"can't read {path}: {reason}.")


def cannot_list(folder: PurePosixPath, reason: str) -> ToolkitError:
    return ToolkitError(f"can't list {folder}: {reason}.", next_step="set target.runs_dir to a folder")


def held_by_another(lock: PurePosixPath) -> ToolkitError:
    return ToolkitError(
        f"another toolkit works in {lock.parent} just now.", next_step="wait for it, or give another --name"
    )
