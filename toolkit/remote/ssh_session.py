"""One ssh connection while it lasts: channels, sftp, and the environment that a login there has."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paramiko import Channel, ChannelException, SFTPClient, SFTPError, SSHException, Transport

from toolkit.errors import ToolkitError
from toolkit.plan.ssh import SshAddress
from toolkit.remote.head import INHERITED, Completed
from toolkit.remote.ssh_connection import Unreachable, connect
from toolkit.render.shell import quote

# What a dropped connection raises; OSError also is what sftp says of a file, on a connection that is alive.
DROPPED = (EOFError, SSHException, SFTPError, OSError)
CHUNK = 64 * 1024
ANSWER_SECONDS = 60  # of the sftp server

# A login's variables, after whatever its profile prints: ParallelCluster puts Slurm into PATH there, and a
# command over ssh runs without it.
MARK = "pd-toolkit-environment"
ENVIRONMENT_SCRIPT = f"""
printf '%s\\0' {MARK}
for name in "$@"; do
  if [ -n "${{!name+set}}" ]; then printf '%s=%s\\0' "$name" "${{!name}}"; fi
done
"""


@dataclass(frozen=True)
class Spoken:
    """What a command said, in bytes."""

    status: int
    output: bytes
    errors: bytes

    @property
    def completed(self) -> Completed:
        return Completed(
            self.status, self.output.decode("utf-8", "replace"), self.errors.decode("utf-8", "replace")
        )


class Session:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.transport: Transport = connection.transport
        self._sftp: SFTPClient | None = None
        self._login: dict[str, str] | None = None

    @classmethod
    def open(cls, address: SshAddress, patience: float) -> Session:
        """Tries for `patience` seconds while nothing answers; raises ToolkitError."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return cls(connect(address))
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    @property
    def alive(self) -> bool:
        return self.transport.is_active()

    def close(self) -> None:
        self._connection.close()

    def channel(self) -> Channel:
        return self.transport.open_session(timeout=ANSWER_SECONDS)

    def channel_to(self, host: str, port: int) -> Channel:
        """To a port of the head node's network; raises ToolkitError if it can't be reached from there."""
        try:
            return self.transport.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=ANSWER_SECONDS
            )
        except ChannelException as error:
            raise ToolkitError(
                f"the head node can't reach {host}:{port}: {error.text}.",
                next_step="is the job still running? `toolkit job list -f FILE`",
            ) from error

    def sftp(self) -> SFTPClient:
        if self._sftp is None:
            channel = self.channel()
            channel.settimeout(ANSWER_SECONDS)
            channel.invoke_subsystem("sftp")
            self._sftp = SFTPClient(channel)
        return self._sftp

    def line(self, argv: Sequence[str], environment: Mapping[str, str]) -> str:
        """A command line that runs `argv` with what a login there has of INHERITED, and `environment`."""
        if self._login is None:
            self._login = self._ask_login()
        variables = [f"{name}={value}" for name, value in {**self._login, **environment}.items()]
        return "exec " + _joined(["env", "-i", *variables, *argv])

    def _ask_login(self) -> dict[str, str]:
        line = _joined(["bash", "-lc", ENVIRONMENT_SCRIPT, "bash", *INHERITED])
        done = converse(self.channel(), line, "", ANSWER_SECONDS).completed
        _, mark, told = done.stdout.partition(MARK + "\0")
        if not mark:
            raise ToolkitError(
                f"a login on the head node does not get as far as a command: {done.stderr.strip()[-300:]!r}, "
                f"exit status {done.returncode}.",
                next_step="`ssh` there with `bash -lc true` must exit 0; see the login's profile",
            )
        return dict(entry.split("=", 1) for entry in told.split("\0")[:-1])


def converse(channel: Channel, line: str, stdin: str, seconds: float) -> Spoken:
    """Runs a line, feeds it and reads all it says. Raises TimeoutError after `seconds` of silence, and what
    DROPPED names when the connection ends before the command has."""
    errors: list[bytes] = []
    with channel:
        channel.settimeout(seconds)
        channel.exec_command(line)
        threads = [
            threading.Thread(target=_feed, args=(channel, stdin), daemon=True),
            threading.Thread(target=_read_errors, args=(channel, errors), daemon=True),
        ]
        for thread in threads:
            thread.start()
        output = []
        while data := channel.recv(CHUNK):
            output.append(data)
        for thread in threads:
            thread.join(seconds)
        # recv_exit_status alone would wait for as long as a connection takes to be known as dead.
        if not channel.status_event.wait(seconds):
            raise TimeoutError("the command ended without a status")
        status = channel.recv_exit_status()
        if status < 0:
            # Killed by a signal, or the connection ended; the transport needs a moment to know the latter.
            transport = channel.get_transport()
            transport.join(0.5)
            if not transport.is_active():
                raise EOFError("the connection ended")
    return Spoken(status, b"".join(output), b"".join(errors))


def _feed(channel: Channel, text: str) -> None:
    try:
        channel.sendall(text.encode("utf-8", "surrogateescape"))
        channel.shutdown_write()
    except OSError:
        # The command ended without reading all; its status tells.
        return


def _read_errors(channel: Channel, into: list[bytes]) -> None:
    try:
        while data := channel.recv_stderr(CHUNK):
            into.append(data)
    except OSError:
        # Silence for too long, which the reader of the output reports.
        return


def _joined(argv: Sequence[str]) -> str:
    return " ".join(map(quote, argv))
