"""toolkit cluster: the cluster that a deployment's jobs run on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.options import confirm, load_settings, output_option, settings_options, yes_option
from toolkit.cli.output import print_data, print_rows, print_table, progress

if TYPE_CHECKING:
    from toolkit.embedded.state import ClusterState
    from toolkit.plan.embedded import EmbeddedPlan


@click.group()
def cli() -> None:
    """Make, look at and take down the cluster that engines run on."""


@cli.command()
@settings_options
@output_option("table", "json")
@click.option("--force", is_flag=True, help="Restart the cluster though it has jobs, which ends them.")
def create(file: Path, assignments: tuple[str, ...], output: str, force: bool) -> None:
    """Bring the cluster up as the settings say.

    What is missing is installed or made; a cluster that is up already is left alone.

    \b
    Example: toolkit cluster create -f deployments/embedded.yaml
    """
    from toolkit.embedded import cluster

    plan = _plan(file, assignments)
    tell = progress()
    state = cluster.create(plan, tell, force=force)
    _print_state(state, output)
    tell(f"for Slurm's own commands: export SLURM_CONF={state.slurm_conf}")


@cli.command()
@settings_options
@yes_option
@click.option("--purge", is_flag=True, help="Also remove models, logs and the engine environment.")
def delete(file: Path, assignments: tuple[str, ...], yes: bool, purge: bool) -> None:
    """Take the cluster down, with its jobs.

    Asks first if there are jobs. Daemons, namespaces and state are removed.

    Models, logs and the engine environment stay, unless --purge.
    """
    from toolkit.embedded import cluster

    plan = _plan(file, assignments)
    jobs = cluster.describe(plan).jobs
    if jobs or purge:
        ends = f"end {len(jobs)} job(s)" * bool(jobs)
        removes = f"remove models, logs and {plan.engine_env}" * purge
        confirm(" and ".join(filter(None, (ends, removes))), yes=yes)
    cluster.delete(plan, progress(), purge=purge)


@cli.command()
@settings_options
@output_option("table", "json")
def describe(file: Path, assignments: tuple[str, ...], output: str) -> None:
    """Show nodes, daemons, jobs, and what is wrong."""
    from toolkit.embedded import cluster

    _print_state(cluster.describe(_plan(file, assignments)), output)


@cli.command("list")
@click.option("-f", "--file", type=click.Path(path_type=Path), metavar="FILE", help="Show its cluster too.")
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set one setting of the file.")
@output_option("table", "json")
def list_(file: Path | None, assignments: tuple[str, ...], output: str) -> None:
    """Show every embedded cluster of this machine.

    With -f, the settings' own cluster comes first, up or not.
    """
    from toolkit.embedded import cluster
    from toolkit.embedded.state import running_roots

    if file is None and assignments:
        raise click.UsageError("--set changes what the settings file says: name it with -f.")
    mine = [cluster.describe(_plan(file, assignments))] if file else []
    rows: list[tuple[str, str, int | None, int | None]] = [
        (str(state.root), state.state, len(state.nodes), len(state.jobs)) for state in mine
    ]
    shown = {state.root for state in mine}
    rows += [(str(root), "running", None, None) for root in running_roots() if root not in shown]
    print_rows(("root", "state", "nodes", "jobs"), rows, output)


def _plan(file: Path, assignments: tuple[str, ...]) -> EmbeddedPlan:
    from toolkit.errors import ToolkitError
    from toolkit.flows.target import embedded_plan
    from toolkit.settings.target import EmbeddedTarget

    settings = load_settings(file, assignments).deployment
    if not isinstance(settings.target, EmbeddedTarget):
        raise ToolkitError(
            f"target.kind {settings.target.kind}: making clusters on AWS is not part of this version",
            next_step="make it with `pcluster create-cluster`; `toolkit job` then submits to it",
        )
    return embedded_plan(settings)


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
