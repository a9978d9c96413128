"""Names of everything an embedded cluster makes outside its root folder. Pure.

All carry the plan's tag, so that two clusters never meet and a stop finds what is left without any record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from toolkit.plan.embedded import EmbeddedPlan

FREEZER = Path("/sys/fs/cgroup/freezer")
NAMESPACES = Path("/run/netns")
DEVICES = Path("/sys/class/net")


@dataclass(frozen=True)
class Places:
    """Where a cluster with this tag keeps what is not in its root."""

    tag: str

    @property
    def run(self) -> Path:
        """Sockets, keys and pid files. In /run, since munged refuses group-writable parents and a socket's
        path may have 107 bytes at most, neither of which holds for every root folder."""
        return Path(f"/run/pd{self.tag}")

    @property
    def spool(self) -> Path:
        """Each slurmd's folder. Not in the root, since a step's socket there is a path of 107 bytes at most,
        and not in /run, where job scripts may not be executed."""
        return Path(f"/var/spool/pd{self.tag}")

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.socket"

    @property
    def bridge(self) -> str:
        return f"pd{self.tag}"

    def veth(self, index: int) -> str:
        return f"pd{self.tag}n{index}"

    def owns_device(self, name: str) -> bool:
        return re.fullmatch(rf"pd{self.tag}(n\d+)?", name) is not None

    def namespace(self, node: str) -> str:
        return f"pd{self.tag}-{node}"

    def owns_namespace(self, name: str) -> bool:
        return name.startswith(f"pd{self.tag}-")

    def freezer(self, node: str) -> Path:
        """Parent of the node's control groups: without it two clusters' `prefill-1` would share theirs."""
        return FREEZER / f"pd{self.tag}-{node}"


def places(plan: EmbeddedPlan) -> Places:
    return Places(plan.tag)
