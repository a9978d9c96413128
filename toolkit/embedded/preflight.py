"""What a plan must satisfy on this machine before anything is started."""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.embedded import network
from toolkit.embedded.packages import ensure_packages
from toolkit.embedded.privilege import require_root
from toolkit.errors import SettingsError
from toolkit.plan.embedded import EmbeddedPlan


def check_root_folder(plan: EmbeddedPlan) -> None:
    """slurm.conf has no quoting: a space ends a value, # begins a comment, % and [] are patterns."""
    odd = sorted(set(re.findall(r"[^A-Za-z0-9._/+@:-]", str(plan.root))))
    if odd:
        raise SettingsError(
            f"target.root: Slurm cannot use the folder {plan.root}: its path has {' '.join(map(repr, odd))}",
            next_step="set target.root to a folder with letters, digits and . _ - + @ : only",
        )


def prepare_machine(plan: EmbeddedPlan) -> bool:
    """Checks folder, rights and network and installs missing packages; True if any was installed.

    Raises SettingsError or ToolkitError with what to change.
    """
    check_root_folder(plan)
    installed = ensure_packages()
    require_root()
    network.check_network_is_free(plan)
    return installed


def mounts_are_shared(table: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a filesystem mounted later reaches the nodes: so under systemd, seldom in a container.

    Optional fields of a line, from the 7th to a dash, have shared:N (proc(5)).
    """
    lines = [line.split(" - ")[0].split() for line in table.read_text().splitlines()]
    # Mounts may lie over one another; the last is the one in use.
    root = [fields[6:] for fields in lines if fields[4] == "/"]
    return bool(root) and any(field.startswith("shared:") for field in root[-1])
