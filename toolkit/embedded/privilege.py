"""The one seam to root. Namespaces, daemons and packages need it; all else runs as the user.

A call here is a named action of `toolkit.embedded.as_root`: run in this process when it is root already,
otherwise in a child under `sudo -n`, with the request on its stdin and the outcome on its stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from toolkit.embedded.tools import find_tool
from toolkit.errors import ToolkitError


def is_root() -> bool:
    return os.geteuid() == 0


def privileged(argv: list[str]) -> list[str]:
    """`argv` as root runs it: itself, or behind `sudo -n`."""
    return argv if is_root() else ["sudo", "-n", *argv]


def require_root(path: str | None = None) -> None:
    """Raises ToolkitError unless this process is root or `sudo -n` works; `path`: where sudo is sought."""
    if is_root():
        return
    sudo = find_tool("sudo", path)
    if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return
    raise ToolkitError(
        "the embedded cluster needs root: its Slurm daemons and network namespaces cannot be made by "
        f"user id {os.geteuid()}, and `sudo -n` {'asks for a password' if sudo else 'is not installed'}",
        next_step="run the same command as root, or let `sudo -n true` succeed first (`sudo -v`)",
    )


def run_as_root(action: str, request: dict[str, object]) -> dict[str, object]:
    """Runs one action of `toolkit.embedded.as_root`; its progress lines go to stderr.

    Raises ToolkitError as the action raised it.
    """
    if is_root():
        from toolkit.embedded import as_root

        return as_root.ACTIONS[action](request)
    # sudo clears the environment, and the packages may be found only where this process found them. No
    # bytecode: it would lie in the user's folders as root's.
    places = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
    python = ["env", places, "PYTHONDONTWRITEBYTECODE=1", sys.executable]
    argv = privileged([*python, "-m", "toolkit.embedded.as_root", action])
    done = subprocess.run(argv, input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer: dict[str, object] = json.loads(done.stdout)
    except json.JSONDecodeError:
        said = f"exit code {done.returncode}; it printed {done.stdout[-500:]!r}"
        raise ToolkitError(f"the part that runs under sudo failed in `{action}`: {said}") from None
    if "error" in answer:
        raise ToolkitError(str(answer["error"]), next_step=str(answer["next_step"]))
    return answer
