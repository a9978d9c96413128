"""A head node over ssh: the Head protocol of head.py for a toolkit that runs elsewhere, such as on a laptop.

A connection that drops is opened again. What may safely be done twice is then done again; a command that may
not, such as sbatch, is told, since nobody knows whether it was done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import PurePosixPath
from typing import TypeVar

from paramiko import Channel

from toolkit.errors import ToolkitError
from toolkit.plan.ssh import SshAddress
from toolkit.remote.head import Completed, cannot_list, cannot_read, cannot_write, no_answer
from toolkit.remote.ssh_lock import RemoteLock
from toolkit.remote.ssh_session import DROPPED, Session, converse
from toolkit.remote.ssh_tunnel import forwarded

T = TypeVar("T")

# How long a connection that was there once is tried again: a Wi-Fi that changes, an sshd that restarts.
RECONNECT_SECONDS = 60
# timeout(1) ends the command there; its answer needs a moment to come back.
GRACE_SECONDS = 10
TIMED_OUT = (124, 137)  # timeout's own status, and that of a command it had to kill
NOT_STARTED = 127

# $1 path, $2 mode, $3 bytes: whole or not at all. The count is compared, since a connection that is cut looks
# like the end of the text.
PUT_SCRIPT = """
set -e
folder=$(dirname -- "$1")
mkdir -p -- "$folder"
new=$(mktemp -- "$folder/.$(basename -- "$1").XXXXXXXX")
trap 'rm -f -- "$new"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$new"
if [ "$(wc -c <"$new")" -ne "$3" ]; then
  echo "put: $1: the connection was cut" >&2
  exit 1
fi
chmod -- "$2" "$new"
mv -fT -- "$new" "$1"
"""
# $1 path, $2 first byte, from 1, $3 bytes. What is more than SFTP_BYTES comes this way: paramiko 5.1.0 needs
# 12 to 20 s for 50 MB by sftp on one machine, and 0.2 s by a channel.
READ_SCRIPT = 'tail -c "+$2" -- "$1" | head -c "$3"'
SFTP_BYTES = 256 * 1024


class SshHead:
    """`environment` is added to that of every command. Finds its address and connects when first used, so
    that what needs no head node needs no network."""

    def __init__(
        self, address: SshAddress | Callable[[], SshAddress], environment: Mapping[str, str] | None = None
    ) -> None:
        self._find = address
        self._environment = dict(environment or {})
        self._session: Session | None = None
        self._was_up = False
        self._locks: list[RemoteLock] = []
        self._guard = threading.RLock()  # a tunnel's connections come on threads of their own

    @cached_property
    def _address(self) -> SshAddress:
        return self._find() if callable(self._find) else self._find

    def close(self) -> None:
        with self._guard:
            if self._session is not None:
                self._session.close()
                self._session = None

    def run(
        self, argv: Sequence[str], *, stdin: str = "", timeout: float = 60, repeat: bool = False
    ) -> Completed:
        command = ["timeout", "--kill-after=5", f"{timeout:g}", *argv]

        def prepare(session: Session) -> tuple[Session, Channel, str]:
            return session, session.channel(), session.line(command, self._environment)

        def talk(channel: Channel, line: str) -> Completed:
            return converse(channel, line, stdin, timeout + GRACE_SECONDS).completed

        started = time.monotonic()
        if repeat:
            done = self._repeatable(lambda session: talk(*prepare(session)[1:]))
        else:
            # Up to here nothing was asked, so that far it may be tried again.
            session, channel, line = self._repeatable(prepare)
            try:
                done = talk(channel, line)
            except DROPPED as error:
                self._forget(session)
                raise self._unknown(argv) from error
        if done.returncode in TIMED_OUT and time.monotonic() - started >= timeout:
            raise no_answer(argv, timeout)
        if done.returncode == NOT_STARTED and done.stderr.startswith("timeout: "):
            raise ToolkitError(
                f"{argv[0]} is not on the head node {self._address.host}.",
                next_step=f"log in there: `bash -lc 'command -v {argv[0]}'` must find it",
            )
        return done

    def _unknown(self, argv: Sequence[str]) -> ToolkitError:
        return ToolkitError(
            f"the connection to {self._address.host} dropped while `{' '.join(argv[:2])}` ran; "
            "whether it was done is unknown.",
            next_step="`toolkit job list -f FILE` shows what runs",
        )

    def put(self, path: PurePosixPath, text: str, *, mode: int = 0o644) -> None:
        size = len(text.encode("utf-8", "surrogateescape"))
        argv = ["env", "LC_ALL=C", "sh", "-c", PUT_SCRIPT, "sh", str(path), f"{mode:o}", str(size)]
        done = self.run(argv, stdin=text, repeat=True)
        if done.returncode != 0:
            said = done.stderr.strip() or f"exit status {done.returncode}"
            raise cannot_write(path, said.splitlines()[-1].rpartition(": ")[2])

    def get(
        self, path: PurePosixPath, *, start: int = 0, tail: int | None = None, limit: int | None = None
    ) -> str | None:
        try:
            content = self._repeatable(lambda session: _read(session, path, start, tail, limit))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise cannot_read(path, error.strerror or str(error)) from error
        return content.decode("utf-8", "surrogateescape")

    def size(self, path: PurePosixPath) -> int | None:
        try:
            return self._repeatable(lambda session: session.sftp().stat(str(path))).st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise cannot_read(path, error.strerror or str(error)) from error

    def names(self, folder: PurePosixPath) -> list[str]:
        try:
            return sorted(self._repeatable(lambda session: session.sftp().listdir(str(folder))))
        except FileNotFoundError:
            # What sftp says of a file as well.
            if self.size(folder) is None:
                return []
            raise cannot_list(folder, "Not a directory") from None
        except OSError as error:
            raise cannot_list(folder, error.strerror or str(error)) from error

    @contextmanager
    def lock(self, path: PurePosixPath) -> Iterator[None]:
        lock = RemoteLock(path)
        self._repeatable(lock.take)
        self._locks.append(lock)
        try:
            yield
        finally:
            self._locks.remove(lock)
            lock.release()

    @contextmanager
    def tunnel(self, host: str, port: int, *, local_port: int = 0) -> Iterator[str]:
        # Tells of a head node that can't be reached before anybody relies on the tunnel.
        self._repeatable(lambda session: session.alive)
        with forwarded(
            lambda: self._repeatable(lambda session: session.channel_to(host, port)), local_port
        ) as local:
            yield f"http://127.0.0.1:{local}"

    def _repeatable(self, work: Callable[[Session], T]) -> T:
        """Does what may be done twice, a second time if the connection dropped meanwhile."""
        dropped = False
        while True:
            session = self._open_session()
            try:
                for lock in self._locks:
                    lock.keep(session)
                return work(session)
            except DROPPED as error:
                if session.alive and isinstance(error, OSError) and not isinstance(error, TimeoutError):
                    raise  # what sftp says of a file
                self._forget(session)
                if dropped:
                    raise ToolkitError(
                        f"the connection to {self._address.host} dropped twice: "
                        f"{error or type(error).__name__}.",
                        next_step="look at the network between here and the head node, and at the login's "
                        "profile there, which must print nothing; what runs there goes on",
                    ) from error
                dropped = True

    def _open_session(self) -> Session:
        with self._guard:
            if self._session is None or not self._session.alive:
                self._session = Session.open(self._address, RECONNECT_SECONDS if self._was_up else 0)
                self._was_up = True
            return self._session

    def _forget(self, session: Session) -> None:
        with self._guard:
            session.close()
            if self._session is session:
                self._session = None


def _read(session: Session, path: PurePosixPath, start: int, tail: int | None, limit: int | None) -> bytes:
    with session.sftp().open(str(path), "rb") as file:
        size = file.stat().st_size or 0
        first = start if tail is None else max(0, size - tail)
        last = size if limit is None else min(size, first + limit)
        if last - first <= SFTP_BYTES:
            file.seek(first)
            return file.read(max(0, last - first))
    line = session.line(["sh", "-c", READ_SCRIPT, "sh", str(path), str(first + 1), str(last - first)], {})
    spoken = converse(session.channel(), line, "", GRACE_SECONDS)
    if spoken.status != 0:
        raise cannot_read(path, spoken.completed.stderr.strip() or f"exit status {spoken.status}")
    return spoken.output
