"""The rows of `toolkit cluster list`: embedded clusters of this machine, ParallelClusters of a region."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.cli.output import Progress
    from toolkit.settings.load import Loaded

COLUMNS = ("name", "target", "state", "version", "region", "nodes", "jobs")
Row = tuple[str, str, str, str | None, str | None, int | None, int | None]


def rows(loaded: Loaded | None, region: str | None, tell: Progress) -> list[Row]:
    """The settings' own cluster first if it is an embedded one; what can't be known from outside is empty."""
    from toolkit.settings.target import EmbeddedTarget

    target = loaded.deployment.target if loaded else None
    version = None
    if target is not None and not isinstance(target, EmbeddedTarget):
        region, version = region or target.region, target.version
    mine = loaded if isinstance(target, EmbeddedTarget) else None
    return [*_embedded(mine), *(_on_aws(region, version, tell) if region else ())]


def _embedded(loaded: Loaded | None) -> list[Row]:
    from toolkit.embedded import cluster
    from toolkit.embedded.state import running_roots
    from toolkit.flows.target import embedded_plan

    mine = [cluster.describe(embedded_plan(loaded.deployment))] if loaded else []
    found: list[Row] = [
        (str(state.root), "embedded", state.state, None, None, len(state.nodes), len(state.jobs))
        for state in mine
    ]
    shown = {state.root for state in mine}
    running = (root for root in running_roots() if root not in shown)
    return found + [(str(root), "embedded", "running", None, None, None, None) for root in running]


def _on_aws(region: str, version: str | None, tell: Progress) -> list[Row]:
    from toolkit.flows.cluster_view import list_clusters

    return [
        (each.name, "parallelcluster", each.stack_status, each.version, each.region, None, None)
        for each in sorted(list_clusters(region, version, tell), key=lambda each: each.name)
    ]
