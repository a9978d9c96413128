"""Staging: the Slurm job that downloads a model to the shared volume before engines need it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from toolkit.errors import SettingsError
from toolkit.plan.run import Allocation
from toolkit.plan.run_folder import RunFolder
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import ParallelClusterTarget

STAGE = "stage"
# Below the home folder, which all nodes of a ParallelCluster share; its mode is 0600, or the job refuses it.
TOKEN_FILE = PurePosixPath(".config/pd-toolkit/hf-token")
# 750 GB at 20 MB/s, with some to spare.
TIME_LIMIT_MINUTES = 1440
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class StageJob:
    name: str
    allocation: Allocation


@dataclass(frozen=True)
class StagingPlan:
    """`name`: of the run. `endpoint`: of a mirror of the hub, or None for the hub itself."""

    name: str
    folder: RunFolder
    job: StageJob
    engine_env: PurePosixPath
    hf_home: PurePosixPath
    model: str
    endpoint: str | None

    @property
    def checker(self) -> PurePosixPath:
        """The Python that asks the hub and verifies what came."""
        return self.folder.root / "scripts" / "model_files.py"

    @property
    def expected(self) -> PurePosixPath:
        """What the hub says that the model is made of."""
        return self.folder.root / "expected.json"


def plan_staging(settings: Deployment, runs: PurePosixPath, endpoint: str | None = None) -> StagingPlan:
    """One run per model, so that a second staging finds the first. Raises SettingsError for a model that
    nothing is downloaded for."""
    target, model = settings.target, settings.model.name
    if not isinstance(target, ParallelClusterTarget):
        raise SettingsError(
            "model staging is for a ParallelCluster; the embedded target makes its model itself.",
            next_step="give a deployment whose target.kind is parallelcluster",
        )
    if not HUB_ID.fullmatch(model):
        raise SettingsError(
            f"model.name {model!r} is no hub id, so there is nothing to download.",
            next_step="a hub id looks like Qwen/Qwen3-32B; a folder must be on the shared volume already",
        )
    name = f"stage-{model.replace('/', '--')}"[:81]
    return StagingPlan(
        name=name,
        folder=RunFolder(runs / name),
        job=StageJob(STAGE, Allocation(target.router_partition, None, 0, False, TIME_LIMIT_MINUTES)),
        engine_env=PurePosixPath(target.engine_env),
        hf_home=PurePosixPath(target.hf_home),
        model=model,
        endpoint=endpoint,
    )
