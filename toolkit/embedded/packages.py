"""Debian packages of the embedded cluster: what is missing, and installing it without starting a service."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.embedded.privilege import require_root, run_as_root
from toolkit.embedded.tools import find_tool
from toolkit.errors import ToolkitError

# executable -> the package that brings it (names of Debian and Ubuntu)
EXECUTABLES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "sinfo": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "taskset": "util-linux",
}
_REFUSE_SERVICES = "#!/bin/sh\nexit 101\n"


def missing_packages(path: str | None = None) -> tuple[str, ...]:
    """Packages whose executables are not found; `path` replaces the search path."""
    missing = (package for name, package in EXECUTABLES.items() if not find_tool(name, path))
    return tuple(dict.fromkeys(missing))


def install_command(packages: tuple[str, ...]) -> list[str]:
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def ensure_packages(path: str | None = None) -> bool:
    """Installs what is missing; True if something was.

    Raises ToolkitError with the command to run by hand.
    """
    missing = missing_packages(path)
    if not missing:
        return False
    by_hand = f"run: sudo {shlex.join(install_command(missing))}"
    if not find_tool("apt-get", path):
        raise ToolkitError(f"missing here: {', '.join(missing)}, and no apt-get", next_step=by_hand)
    try:
        require_root(path)
    except ToolkitError as error:
        told = f"missing here: {', '.join(missing)}; {error.what}"
        raise ToolkitError(told, next_step=by_hand) from None
    run_as_root("install", {"packages": missing})
    still = missing_packages(path)
    if still:
        raise ToolkitError(f"apt-get reported success, yet missing: {', '.join(still)}", next_step=by_hand)
    return True


def install(packages: tuple[str, ...]) -> None:
    """As root. Package lists are refreshed only if the install fails without."""
    with _services_refused():
        first = _apt_get(install_command(packages))
        if first.returncode != 0:
            _apt_get(["apt-get", "update"])
            second = _apt_get(install_command(packages))
            if second.returncode != 0:
                tail = "\n".join((second.stdout + second.stderr).splitlines()[-8:])
                raise ToolkitError(
                    f"apt-get could not install {', '.join(packages)}:\n{tail}",
                    next_step=f"run: sudo {shlex.join(install_command(packages))}",
                )


def _apt_get(argv: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


@contextmanager
def _services_refused(policy: Path = Path("/usr/sbin/policy-rc.d")) -> Iterator[None]:
    """Debian starts a package's services unless this file says no; one that exists already is left alone."""
    if policy.exists():
        yield
        return
    policy.write_text(_REFUSE_SERVICES)
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)
