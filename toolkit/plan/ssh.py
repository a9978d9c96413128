"""How a head node is reached over ssh, and which host keys may answer there. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# cloud-init prints the block through logger, so that every line carries a prefix such as
# `<14>Nov 29 12:00:00 ec2: ` (cloud-init, tools/write-ssh-key-fingerprints; it holds `ssh-keygen -l` lines).
BEGIN = "-----BEGIN SSH HOST KEY FINGERPRINTS-----"
END = "-----END SSH HOST KEY FINGERPRINTS-----"
FINGERPRINT = re.compile(r"\b\d+ (SHA256:[A-Za-z0-9+/]{43})(?![A-Za-z0-9+/=])")


@dataclass(frozen=True)
class SshAddress:
    """`key_file`: None for the ssh agent's keys and the user's default ones. `known_hosts`: the toolkit's own
    file, read and added to. `fingerprints`: of host keys that are trusted on sight, `SHA256:...`."""

    host: str
    port: int
    user: str
    key_file: Path | None
    known_hosts: Path
    fingerprints: tuple[str, ...] = ()
    connect_seconds: int = 15

    @property
    def known_as(self) -> str:
        """The host's name in a known_hosts file."""
        return self.host if self.port == 22 else f"[{self.host}]:{self.port}"

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def fingerprints_in_console_output(text: str) -> tuple[str, ...]:
    """The host keys' SHA256 fingerprints that cloud-init printed on an instance's console.

    Only of the last whole block: a rebuilt host has new keys, and a line elsewhere may be anybody's. Empty
    without a block, as in the first minutes of an instance.
    """
    start = text.rfind(BEGIN, 0, max(0, text.rfind(END)))
    if start < 0:
        return ()
    block = text[start : text.index(END, start)]
    return tuple(dict.fromkeys(FINGERPRINT.findall(block)))
