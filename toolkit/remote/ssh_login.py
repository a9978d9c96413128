"""The user's own ssh client in place of this process, for a terminal on the head node.

The host key is known by then, in the toolkit's known_hosts file or the user's: `ssh_connection.connect`
checked it.
"""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

from toolkit.errors import ToolkitError
from toolkit.plan.ssh import SshAddress
from toolkit.remote.ssh_connection import USERS_KNOWN_HOSTS, connect


def login_arguments(address: SshAddress) -> list[str]:
    """What `ssh` is called with: no agent forwarding, no question about host keys, none taken on trust."""
    known = f"{_quoted(str(address.known_hosts))} {_quoted(str(USERS_KNOWN_HOSTS.expanduser()))}"
    options = [
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={known}",
        "ForwardAgent=no",
        "ServerAliveInterval=15",
    ]
    key = ["-i", str(address.key_file), "-o", "IdentitiesOnly=yes"] if address.key_file else []
    settings = [word for option in options for word in ("-o", option)]
    return ["ssh", *settings, *key, "-p", str(address.port), "-l", address.user, "--", address.host]


def login(address: SshAddress) -> NoReturn:
    """Checks the host key, then replaces this process; ToolkitError where the machine has no ssh client."""
    if shutil.which("ssh") is None:
        raise ToolkitError(
            "this machine has no ssh client.",
            next_step="install one (openssh-client), or name a command: `toolkit cluster ssh -f FILE -- "
            "COMMAND`",
        )
    connect(address).close()
    os.execvp("ssh", login_arguments(address))


def _quoted(path: str) -> str:
    """ssh splits the value of UserKnownHostsFile at spaces, unless it is in quotes."""
    return f'"{path}"' if " " in path else path
