"""A lock file on the head node, held by a process there that ends with the connection.

The process holds the lock as long as a line comes now and then, so that neither a killed toolkit nor a laptop
that was shut leaves a lock behind.
"""

from __future__ import annotations

import threading
from pathlib import PurePosixPath

from paramiko import Channel

from toolkit.remote.head import cannot_write, held_by_another
from toolkit.remote.ssh_session import DROPPED, Session

BEAT_SECONDS = 20
GIVEN_UP_SECONDS = 90
RELEASE_SECONDS = 10
HELD = "held\n"
BUSY = 75  # EX_TEMPFAIL: not a status of flock's own or of a shell

# $1 lock file, $2 seconds to wait for it, $3 seconds without a line after which the holder is taken for gone.
LOCK_SCRIPT = f"""
mkdir -p -- "$(dirname -- "$1")" || exit
exec flock --conflict-exit-code {BUSY} --timeout "$2" -- "$1" \
  bash -c 'echo held; while read -r -t "$1" _; do :; done' bash "$3"
"""


class RemoteLock:
    """`patience`: seconds to wait after a connection has dropped, in which a former holder gives up."""

    def __init__(self, path: PurePosixPath, patience: int = GIVEN_UP_SECONDS + 10) -> None:
        self._path = path
        self.patience = patience
        self._channel: Channel | None = None
        self._released = threading.Event()

    def take(self, session: Session) -> None:
        """Raises ToolkitError while another process holds it."""
        self._take(session, wait_seconds=0)

    def keep(self, session: Session) -> None:
        """Takes it again after a connection has dropped: the former holder may not have noticed yet."""
        if self._channel is not None and self._channel.closed:
            self._take(session, wait_seconds=self.patience)

    def release(self) -> None:
        """Returns when the holder has ended."""
        self._released.set()
        channel, self._channel = self._channel, None
        if channel is None:
            return
        with channel:
            try:
                channel.shutdown_write()
                channel.status_event.wait(RELEASE_SECONDS)
            except DROPPED:
                # The connection has gone, and the holder with it.
                return

    def _take(self, session: Session, wait_seconds: int) -> None:
        argv = ["bash", "-c", LOCK_SCRIPT, "bash", str(self._path), str(wait_seconds), str(GIVEN_UP_SECONDS)]
        channel = session.channel()
        channel.settimeout(wait_seconds + 30)
        channel.exec_command(session.line(argv, {"LC_ALL": "C"}))
        said = b""
        while len(said) < len(HELD) and (data := channel.recv(len(HELD))):
            said += data
        if said.decode(errors="replace") != HELD:
            self._refused(channel)
        self._channel = channel
        threading.Thread(target=self._beat, args=(channel,), daemon=True).start()

    def _refused(self, channel: Channel) -> None:
        with channel:
            told = b"".join(iter(lambda: channel.recv_stderr(4096), b"")).decode(errors="replace").strip()
            status = channel.recv_exit_status()
        if status == BUSY:
            raise held_by_another(self._path)
        if status < 0:
            raise EOFError("the connection ended")
        raise cannot_write(self._path, told.rpartition(": ")[2] or f"flock ended with status {status}")

    def _beat(self, channel: Channel) -> None:
        while not self._released.wait(BEAT_SECONDS) and not channel.closed:
            try:
                channel.sendall(b"\n")
            except OSError:
                # The connection has dropped; whoever uses the head next takes the lock again.
                return
