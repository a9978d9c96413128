"""The demo: cluster, sweep, report, and the cluster down again."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from toolkit.embedded import cluster
from toolkit.errors import SettingsError
from toolkit.flows.run import Progress
from toolkit.flows.sweep import Bar, open_sweep
from toolkit.flows.target import open_target
from toolkit.plan.embedded import plan_embedded
from toolkit.report.build import build
from toolkit.settings.deployment import Deployment


@dataclass(frozen=True)
class DemoResults:
    folder: Path
    valid: bool
    reasons: tuple[str, ...]
    verdict: str


def run_demo(settings: Deployment, name: str, tell: Progress, bar: Bar, *, keep: bool = False) -> DemoResults:
    """Runs the sweep `name` from nothing. The cluster is taken down whatever happens, unless `keep`."""
    target = open_target(settings)
    sweep = open_sweep(settings, target, name)
    folder = Path(sweep.folder.root)
    plan = plan_embedded(settings, Path.cwd(), os.cpu_count() or 1)
    cluster.create(plan, tell)
    try:
        _clear(folder, tell)
        sweep.run(tell, bar)
    finally:
        if not keep:
            tell("taking the cluster down")
            cluster.delete(plan, tell)
    results = build(folder)
    return DemoResults(folder, results.valid, tuple(results.reasons), results.summary)


def _clear(folder: Path, tell: Progress) -> None:
    """A demo measures anew; rows of a former one would only be shown again."""
    if folder.exists():
        if not (folder / "settings.json").exists():
            raise SettingsError(f"{folder} is not a sweep's folder.", next_step="give another --name")
        tell(f"removing the former {folder}")
        shutil.rmtree(folder)
