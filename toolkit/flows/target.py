"""A deployment's target, opened: its head node, Slurm, and where things are on it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from toolkit.errors import SettingsError
from toolkit.flows.head_node import Lookup, ask_aws, is_this_machine, remote_address
from toolkit.plan.embedded import EmbeddedPlan, plan_embedded
from toolkit.plan.run import Places, places_of, runs_folder
from toolkit.remote.head import Head, LocalHead
from toolkit.remote.slurm import Slurm
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import EmbeddedTarget


@dataclass(frozen=True)
class OpenTarget:
    """`remote`: the head node is another machine, reached over ssh; what its jobs write is read through
    `head`, and the addresses they publish are of its network."""

    head: Head
    slurm: Slurm
    places: Places
    runs: PurePosixPath
    remote: bool = False


def embedded_plan(settings: Deployment) -> EmbeddedPlan:
    """The embedded cluster of these settings on this machine, from the current folder."""
    return plan_embedded(settings, Path.cwd(), os.cpu_count() or 1)


def open_target(settings: Deployment, lookup: Lookup = ask_aws) -> OpenTarget:
    """The target's head node: this machine for the embedded cluster and on a ParallelCluster's own head node,
    else the one of target.ssh. Nothing is connected yet, and AWS is asked only then."""
    base = Path.cwd()
    target = settings.target
    conf = None
    head: Head = LocalHead()
    remote = False
    if isinstance(target, EmbeddedTarget):
        conf = PurePosixPath(embedded_plan(settings).slurm_conf)
        head = LocalHead({"SLURM_CONF": str(conf)})
    elif not is_this_machine(target):
        # Here, since fabric takes a third of a second to import.
        from toolkit.remote.ssh_head import SshHead

        _refuse_paths_of_this_machine(settings)
        head = SshHead(lambda: remote_address(target, lookup))
        remote = True
    return OpenTarget(
        head=head,
        slurm=Slurm(head, conf=conf),
        # The prefix, not the resolved executable: a virtual environment is known by its path.
        places=places_of(settings, base, Path(sys.prefix) / "bin" / "python"),
        runs=runs_folder(settings, base),
        remote=remote,
    )


def _refuse_paths_of_this_machine(settings: Deployment) -> None:
    name = settings.model.name
    if name.startswith(("./", "../")):
        raise SettingsError(
            f"model.name {name!r} starts from a folder of this machine, and the cluster is another.",
            next_step="give the model's whole path on the cluster, or its hub id and `toolkit job stage`",
        )
