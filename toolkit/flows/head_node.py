"""Which machine the head node of a ParallelCluster is, and how it is reached from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.plan.ssh import SshAddress, fingerprints_in_console_output
from toolkit.settings.target import ParallelClusterTarget

# Written on every node of a ParallelCluster 3 before any custom action runs, as NAME=VALUE lines
# (aws-parallelcluster-cookbook, recipe aws-parallelcluster-environment::cfnconfig_mixed).
NODE_FACTS = Path("/etc/parallelcluster/cfnconfig")
# Nodes with Slurm's commands and the shared volumes.
WITH_SLURM = ("HeadNode", "LoginNode")
LOCAL = "local"


@dataclass(frozen=True)
class HeadNode:
    """As AWS tells it. `console_output`: of the instance; empty in its first minutes."""

    ip: str
    console_output: str


Lookup = Callable[[ParallelClusterTarget], HeadNode]


def no_lookup(target: ParallelClusterTarget) -> HeadNode:
    raise ToolkitError(
        f"where the head node of {target.cluster_name} is was not told.",
        next_step="set target.ssh.host to its address, or to `local` on the head node itself",
    )


def ask_aws(target: ParallelClusterTarget) -> HeadNode:
    """Where AWS says that the head node is, and what its console says of its host keys."""
    from toolkit.flows.cluster_lookup import lookup_head

    return lookup_head(target)


def head_address(target: ParallelClusterTarget, lookup: Lookup = no_lookup) -> SshAddress | None:
    """How the head node is reached; None if it is this machine."""
    return None if is_this_machine(target) else remote_address(target, lookup)


def is_this_machine(target: ParallelClusterTarget, node_facts: Path = NODE_FACTS) -> bool:
    """Whether jobs of the target's cluster are submitted right here: on its head node or a login node."""
    if target.ssh.host is not None:
        return target.ssh.host == LOCAL
    if not node_facts.exists():
        return False
    lines = node_facts.read_text(encoding="utf-8").splitlines()
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    cluster = facts.get("stack_name", target.cluster_name)
    return facts.get("cfn_node_type") in WITH_SLURM and cluster == target.cluster_name


def remote_address(target: ParallelClusterTarget, lookup: Lookup = no_lookup) -> SshAddress:
    """`lookup` is asked only if the settings name no host. The fingerprints of its console are trusted,
    unless the settings name one."""
    ssh = target.ssh
    host = ssh.host
    fingerprints: tuple[str, ...] = ()
    if host is None:
        node = lookup(target)
        host, fingerprints = node.ip, fingerprints_in_console_output(node.console_output)
    return SshAddress(
        host=host,
        port=ssh.port,
        user=ssh.user,
        key_file=ssh.key_file,
        known_hosts=ssh.known_hosts.expanduser(),
        fingerprints=(ssh.fingerprint,) if ssh.fingerprint else fingerprints,
    )
