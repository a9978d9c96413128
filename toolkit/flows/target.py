"""A deployment's target, opened: its head node, Slurm, and where things are on it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from toolkit.plan.embedded import EmbeddedPlan, plan_embedded
from toolkit.plan.run import Places, places_of, runs_folder
from toolkit.remote.head import Head, LocalHead
from toolkit.remote.slurm import Slurm
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import EmbeddedTarget


@dataclass(frozen=True)
class OpenTarget:
    head: Head
    slurm: Slurm
    places: Places
    runs: PurePosixPath


def embedded_plan(settings: Deployment) -> EmbeddedPlan:
    """The embedded cluster of these settings on this machine, from the current folder."""
    return plan_embedded(settings, Path.cwd(), os.cpu_count() or 1)


def open_target(settings: Deployment) -> OpenTarget:
    """The target's head node. Both kinds are reached from the machine itself: the embedded cluster's
    machine, or a login on the ParallelCluster's head node."""
    base = Path.cwd()
    conf = None
    if isinstance(settings.target, EmbeddedTarget):
        conf = PurePosixPath(embedded_plan(settings).slurm_conf)
    head = LocalHead({"SLURM_CONF": str(conf)} if conf else {})
    return OpenTarget(
        head=head,
        slurm=Slurm(head, conf=conf),
        # The prefix, not the resolved executable: a virtual environment is known by its path.
        places=places_of(settings, base, Path(sys.prefix) / "bin" / "python"),
        runs=runs_folder(settings, base),
    )
