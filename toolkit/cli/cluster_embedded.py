"""toolkit cluster, for the cluster of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolkit.cli.options import confirm
from toolkit.cli.output import print_data, print_table, progress

if TYPE_CHECKING:
    from toolkit.embedded.state import ClusterState
    from toolkit.settings.deployment import Deployment


def create(settings: Deployment, output: str, *, force: bool) -> None:
    from toolkit.embedded import cluster
    from toolkit.flows.target import embedded_plan

    tell = progress()
    state = cluster.create(embedded_plan(settings), tell, force=force)
    _print_state(state, output)
    tell(f"for Slurm's own commands: export SLURM_CONF={state.slurm_conf}")


def delete(settings: Deployment, *, yes: bool, purge: bool) -> None:
    from toolkit.embedded import cluster
    from toolkit.flows.target import embedded_plan

    plan = embedded_plan(settings)
    jobs = cluster.describe(plan).jobs
    if jobs or purge:
        ends = f"end {len(jobs)} job(s)" * bool(jobs)
        removes = f"remove models, logs and {plan.engine_env}" * purge
        confirm(" and ".join(filter(None, (ends, removes))), yes=yes)
    cluster.delete(plan, progress(), purge=purge)


def describe(settings: Deployment, output: str) -> None:
    from toolkit.embedded import cluster
    from toolkit.flows.target import embedded_plan

    _print_state(cluster.describe(embedded_plan(settings)), output)


def _print_state(state: ClusterState, output: str) -> None:
    if output == "json":
        from dataclasses import asdict

        print_data(asdict(state) | {"root": str(state.root), "slurm_conf": str(state.slurm_conf)}, output)
        return
    click.echo(f"cluster in {state.root}: {state.state}", err=True)
    for problem in state.problems:
        click.echo(f"  {problem}", err=True)
    rows = [
        (n.name, n.partition, n.state, n.address, n.gpus, _join(n.cores), state.daemons.get(n.name))
        for n in state.nodes
    ]
    print_table(("node", "partition", "state", "address", "gpus", "cores", "slurmd"), rows)
    if state.jobs:
        jobs = "; ".join(f"{job.job_id} {job.state} {job.name} {job.nodes}".strip() for job in state.jobs)
        click.echo(f"jobs: {jobs}", err=True)


def _join(cores: tuple[int, ...]) -> str:
    return ",".join(map(str, cores))
