"""The demo: cluster, sweep, report, and the cluster down again."""

from __future__ import annotations

import shutil
from pathlib import Path

from toolkit.embedded import cluster
from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.run import Progress
from toolkit.flows.sweep import Bar, open_sweep
from toolkit.flows.target import embedded_plan, open_target
from toolkit.report.build import build
from toolkit.report.results import Results
from toolkit.settings.deployment import Deployment


def run_demo(
    settings: Deployment, name: str, tell: Progress, bar: Bar, *, keep: bool = False
) -> tuple[Path, Results]:
    """The folder and results of the sweep `name`, run from nothing. The cluster is taken down whatever
    happens, unless `keep`; one that has jobs is not touched, which raises ToolkitError."""
    target = open_target(settings)
    sweep = open_sweep(settings, target, name)
    folder = Path(sweep.folder.root)
    plan = embedded_plan(settings)
    if jobs := cluster.describe(plan).jobs:
        raise ToolkitError(
            f"the cluster in {plan.root} has jobs: {', '.join(job.name for job in jobs)}.",
            next_step="end them first: `toolkit job cancel --all -f deployments/embedded.yaml`",
        )
    try:
        cluster.create(plan, tell)
        _clear(folder, tell)
        sweep.run(tell, bar)
    finally:
        if not keep:
            tell("taking the cluster down")
            cluster.delete(plan, tell)
    return folder, build(folder)


def _clear(folder: Path, tell: Progress) -> None:
    """A demo measures anew; rows of a former one would only be shown again."""
    if folder.exists():
        if not (folder / "settings.json").exists():
            raise SettingsError(f"{folder} is not a sweep's folder.", next_step="give another --name")
        tell(f"removing the former {folder}")
        shutil.rmtree(folder)
