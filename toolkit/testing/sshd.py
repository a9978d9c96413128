"""A real sshd of this machine for tests, with keys of its own; nothing of the machine's sshd is touched."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.plan.ssh import SshAddress
from toolkit.testing.serving import wait_until

SSHD = Path("/usr/sbin/sshd")


@dataclass
class Sshd:
    """`folder` holds its keys; `key` lets the tests' user in. Restarted on the same port, it may show another
    host key."""

    folder: Path
    port: int
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> Path:
        return self.folder / "user_key"

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.folder / "host_key")

    def make_keys(self) -> None:
        for name in ("host_key", "user_key"):
            make_key(self.folder / name)
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")

    def start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        variables = " ".join(f"{name}={value}" for name, value in self.environment.items())
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder / 'host_key'}",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            "PidFile none",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "PrintMotd no",
            "MaxSessions 50",
            "Subsystem sftp internal-sftp",
            *([f"SetEnv {variables}"] if variables else []),
            *self.options,
        ]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(config)], stderr=log)
        wait_until(self._listens)

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def sessions(self) -> list[int]:
        """Its processes that serve a connection."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def drop_connections(self) -> None:
        dropped = self.sessions()
        for pid in dropped:
            _kill(pid)
        # Others may come at once.
        wait_until(lambda: not set(dropped) & set(self.sessions()))

    def stop(self) -> None:
        assert self.process is not None
        for pid in [*self.sessions(), self.process.pid]:
            _kill(pid)
        self.process.wait()

    def address(self, known_hosts: Path, *fingerprints: str) -> SshAddress:
        return SshAddress("127.0.0.1", self.port, getpass.getuser(), self.key, known_hosts, fingerprints)


def _kill(pid: int) -> None:
    # A session may end by itself meanwhile.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def make_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> None:
    path.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True)


def fingerprint(key: Path) -> str:
    command = ["ssh-keygen", "-l", "-f", f"{key}.pub"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]
