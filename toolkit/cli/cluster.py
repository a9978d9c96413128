"""toolkit cluster: the cluster that a deployment's jobs run on, on this machine or on AWS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from toolkit.cli.options import (
    dry_run_option,
    load_settings,
    output_option,
    settings_options,
    yes_option,
)
from toolkit.cli.output import print_rows, progress

if TYPE_CHECKING:
    from toolkit.settings.load import Loaded

wait_option = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="AWS: follow until it is done."
)


@click.group()
def cli() -> None:
    """Make, change, look at and take down the cluster that engines run on."""


@cli.command()
@settings_options
@output_option("table", "json")
@yes_option
@dry_run_option
@click.option("--check", is_flag=True, help="AWS, with --dry-run: also ask AWS and pcluster. Makes nothing.")
@wait_option
@click.option("--no-rollback", is_flag=True, help="AWS: leave a failed cluster as it is, to be looked at.")
@click.option(
    "--force", is_flag=True, help="Embedded: restart the cluster though it has jobs, which ends them."
)
def create(
    file: Path,
    assignments: tuple[str, ...],
    output: str,
    yes: bool,
    dry_run: bool,
    check: bool,
    wait: bool,
    no_rollback: bool,
    force: bool,
) -> None:
    """Bring the cluster up as the settings say.

    Embedded: what is missing is installed or made; a cluster that is up already is left alone.

    AWS: checks everything first, shows what will be made and asks. Stopped, it goes on by itself; the same
    command follows it again.

    \b
    Examples: toolkit cluster create -f deployments/embedded.yaml
              toolkit cluster create -f deployments/qwen3-32b-p5en.yaml --dry-run
    """
    loaded = load_settings(file, assignments)
    if check and not dry_run:
        raise click.UsageError("--check goes with --dry-run; without it everything is checked anyway.")
    if _is_embedded(loaded):
        from toolkit.cli import cluster_embedded

        _refuse_here({"--dry-run": dry_run, "--no-wait": not wait, "--no-rollback": no_rollback}, "AWS")
        cluster_embedded.create(loaded.deployment, output, force=force)
        return
    from toolkit.cli import cluster_aws

    _refuse_here({"--force": force}, "the embedded target")
    if dry_run:
        cluster_aws.print_config(loaded, check=check)
    else:
        cluster_aws.create(loaded, output=output, yes=yes, wait=wait, rollback=not no_rollback)


@cli.command()
@settings_options
@output_option("table", "json")
@yes_option
@wait_option
def update(file: Path, assignments: tuple[str, ...], output: str, yes: bool, wait: bool) -> None:
    """Change a cluster on AWS to what the settings say.

    Shows what differs and what pcluster makes of it, and asks.
    """
    from toolkit.cli import cluster_aws

    loaded = _on_aws(file, assignments)
    cluster_aws.update(loaded, output=output, yes=yes, wait=wait)


@cli.command()
@settings_options
@click.option("--exit-code", is_flag=True, help="Exit with 1 if they differ.")
@click.pass_context
def diff(context: click.Context, file: Path, assignments: tuple[str, ...], exit_code: bool) -> None:
    """Show how the settings differ from the cluster that runs on AWS.

    A unified diff of ParallelCluster's configuration, from what runs to what the settings give.
    """
    from toolkit.cli import cluster_aws

    context.exit(cluster_aws.diff(_on_aws(file, assignments), exit_code=exit_code))


@cli.command()
@settings_options
@yes_option
@click.option("--purge", is_flag=True, help="Embedded: also remove models, logs and the engine environment.")
@click.option("--delete-network", is_flag=True, help="AWS: also the network that `create` made.")
@click.option(
    "--not-mine", is_flag=True, help="AWS: also a cluster that was not made from this file's target."
)
def delete(
    file: Path,
    assignments: tuple[str, ...],
    yes: bool,
    purge: bool,
    delete_network: bool,
    not_mine: bool,
) -> None:
    """Take the cluster down, with its jobs.

    Embedded: daemons, namespaces and state are removed; models, logs and the engine environment stay, unless
    --purge. Asks first if there are jobs.

    AWS: shows what goes and what stays, asks, waits until no instance is left. File systems, images, logs and
    buckets stay; each is named with the command that removes it. A cluster of that name whose subnets,
    reservation or tags are not those of the file is left alone, unless --not-mine.
    """
    loaded = load_settings(file, assignments)
    if _is_embedded(loaded):
        from toolkit.cli import cluster_embedded

        _refuse_here({"--delete-network": delete_network, "--not-mine": not_mine}, "AWS")
        cluster_embedded.delete(loaded.deployment, yes=yes, purge=purge)
        return
    from toolkit.cli import cluster_aws

    _refuse_here({"--purge": purge}, "the embedded target")
    cluster_aws.delete(loaded, yes=yes, delete_network=delete_network, not_mine=not_mine)


@cli.command()
@settings_options
@output_option("table", "json")
@click.option("--wait", is_flag=True, help="AWS: first follow what is under way to its end.")
def describe(file: Path, assignments: tuple[str, ...], output: str, wait: bool) -> None:
    """Show state, nodes, jobs, and what is wrong."""
    loaded = load_settings(file, assignments)
    if _is_embedded(loaded):
        from toolkit.cli import cluster_embedded

        _refuse_here({"--wait": wait}, "AWS")
        cluster_embedded.describe(loaded.deployment, output)
        return
    from toolkit.cli import cluster_aws

    cluster_aws.describe(loaded, output=output, wait=wait)


@cli.command("list")
@click.option("-f", "--file", type=click.Path(path_type=Path), metavar="FILE", help="Show its cluster too.")
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set one setting of the file.")
@click.option("--region", help="Show the clusters of this AWS region.")
@output_option("table", "json")
def list_(file: Path | None, assignments: tuple[str, ...], region: str | None, output: str) -> None:
    """Show the embedded clusters of this machine and the clusters of an AWS region.

    The region is that of --region or of the settings; without either AWS is not asked. With -f of an embedded
    deployment, its own cluster comes first, up or not.
    """
    from toolkit.cli import cluster_list

    if file is None and assignments:
        raise click.UsageError("--set changes what the settings file says: name it with -f.")
    loaded = load_settings(file, assignments) if file else None
    rows = cluster_list.rows(loaded, region, progress())
    print_rows(cluster_list.COLUMNS, rows, output)


@cli.command()
@settings_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def ssh(context: click.Context, file: Path, assignments: tuple[str, ...], command: tuple[str, ...]) -> None:
    """Log in to the head node of a cluster on AWS, or run COMMAND there.

    Its host key is checked against the fingerprints on its console; the agent is not forwarded.

    \b
    Examples: toolkit cluster ssh -f deployments/qwen3-32b-p5en.yaml
              toolkit cluster ssh -f deployments/qwen3-32b-p5en.yaml -- sinfo -N
    """
    from toolkit.cli import cluster_aws

    context.exit(cluster_aws.ssh(_on_aws(file, assignments), command))


@cli.command()
@settings_options
@click.argument("action", type=click.Choice(["start", "stop"]))
@output_option("table", "json")
@yes_option
@wait_option
def fleet(
    file: Path,
    assignments: tuple[str, ...],
    action: Literal["start", "stop"],
    output: str,
    yes: bool,
    wait: bool,
) -> None:
    """Start or stop the compute nodes of a cluster on AWS; the head node stays.

    Stopping terminates the nodes and ends their jobs, and asks first. Starting also ends PROTECTED mode.

    \b
    Example: toolkit cluster fleet -f deployments/qwen3-32b-p5en.yaml start
    """
    from toolkit.cli import cluster_fleet

    cluster_fleet.change(_on_aws(file, assignments), action, output=output, yes=yes, wait=wait)


def _is_embedded(loaded: Loaded) -> bool:
    return loaded.deployment.target.kind == "embedded"


def _on_aws(file: Path, assignments: tuple[str, ...]) -> Loaded:
    loaded = load_settings(file, assignments)
    if _is_embedded(loaded):
        raise click.UsageError(
            f"{file} is of the embedded cluster, which is this machine: `toolkit cluster create` brings "
            "it to what the settings say, `toolkit cluster describe` shows it."
        )
    return loaded


def _refuse_here(options: dict[str, bool], target: str) -> None:
    """An option of the other kind of target would change nothing, so it is refused."""
    for option, given in options.items():
        if given:
            raise click.UsageError(f"{option} is for {target} only.")
