"""toolkit doctor: what is wrong with a cluster or a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import load_settings, output_option, settings_options
from toolkit.cli.output import print_data, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.flows.doctor import Report
    from toolkit.flows.target import OpenTarget
    from toolkit.settings.deployment import Deployment

COLUMNS = ("where", "severity", "check", "symptom", "next_step")
ORDER = ("error", "warning", "unknown", "ok")

all_option = click.option("--all", "everything", is_flag=True, help="Also list the checks that are ok.")


@click.group()
def cli() -> None:
    """Find what is wrong with a cluster or a node, with evidence and the next step.

    Exits 1 when there is an error; a check whose input could not be had is `unknown`, never ok.
    """


@cli.command()
@settings_options
@output_option("table", "json", "yaml")
@all_option
@click.pass_context
def cluster(
    ctx: click.Context, file: Path, assignments: tuple[str, ...], output: str, everything: bool
) -> None:
    """Judge the cluster as a whole: Slurm, its nodes, capacity.

    \b
    Example: toolkit doctor cluster -f deployments/embedded.yaml
    """
    from toolkit.flows.doctor import examine_cluster
    from toolkit.flows.target import open_target

    loaded = load_settings(file, assignments)
    aws = None
    if loaded.deployment.target.kind == "parallelcluster":
        from toolkit.flows.cluster_side import aws_side
        from toolkit.flows.provision import open_cloud

        aws = aws_side(open_cloud(loaded, progress()))
    report = examine_cluster(loaded.deployment, open_target(loaded.deployment), aws=aws)
    _tell(ctx, [report], output, everything=everything)


@cli.command()
@click.option(
    "-f", "--file", type=click.Path(path_type=Path), metavar="FILE", help="Deployment settings, YAML."
)
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set one setting of the file.")
@click.option(
    "--node", "names", metavar="NAME", multiple=True, help="A node; default: all of the deployment."
)
@click.option("--local", is_flag=True, help="Judge this machine.")
@click.option(
    "--from-file",
    "saved",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="PROBE_OUTPUT",
    help="Judge what `bash ami-setup/probe.sh` printed on a node.",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="ENGINE_LOG",
    help="Also judge an engine's log (NIXL_LOG_LEVEL=DEBUG, UCX_PROTO_INFO=y).",
)
@click.option("--disk-speed", is_flag=True, help="Write and read 1 GiB in the folder of the runs.")
@output_option("table", "json", "yaml")
@all_option
@click.pass_context
def node(
    ctx: click.Context,
    file: Path | None,
    assignments: tuple[str, ...],
    names: tuple[str, ...],
    local: bool,
    saved: Path | None,
    log: Path | None,
    disk_speed: bool,
    output: str,
    everything: bool,
) -> None:
    """Judge nodes: driver, kernel, CUDA, EFA, NIXL, limits, folders, ports.

    All nodes of the deployment's partitions are probed through Slurm, or those of --node.

    \b
    Examples: toolkit doctor node -f deployments/qwen3-32b-p5en.yaml --node gpu-st-p5en-1
              toolkit doctor node --local
              toolkit doctor node --from-file node.txt --log prefill-1.log
    """
    from toolkit.flows import doctor

    _check_usage(file, assignments, names, local, saved, log)
    settings, target = _open(file, assignments)
    reports: list[Report] = []
    if saved:
        text = saved.read_text(encoding="utf-8", errors="replace")
        reports.append(doctor.examine_output(text, settings, target))
    elif local:
        reports.append(doctor.examine_here(settings, target, disk_speed=disk_speed))
    elif settings and target:
        reports += doctor.examine_nodes(settings, target, names, progress(), disk_speed=disk_speed)
    said = log.read_text(encoding="utf-8", errors="replace") if log else None
    # A saved output and this machine are judged without asking the cluster.
    asked = target if target and not saved and not (local and target.remote) else None
    engines = doctor.examine_engines(settings, asked, said, progress())
    if settings is None and (local or saved):
        progress()(
            "without -f only what is there is judged: with it GPUs, EFA devices and folders are expected"
        )
    _tell(ctx, [*reports, *([engines] if engines else [])], output, everything=everything)


def _check_usage(
    file: Path | None,
    assignments: tuple[str, ...],
    names: tuple[str, ...],
    local: bool,
    saved: Path | None,
    log: Path | None,
) -> None:
    if local and saved:
        raise click.UsageError("--local and --from-file exclude each other.")
    if names and (local or saved):
        raise click.UsageError("--node is probed through the cluster: leave out --local and --from-file.")
    if assignments and file is None:
        raise click.UsageError("--set changes what the settings file says: name it with -f.")
    if not (file or local or saved or log):
        raise click.UsageError("Name the cluster's settings with -f, or give --local, --from-file or --log.")
    if names and file is None:
        raise click.UsageError("--node needs the cluster's settings: name them with -f.")


def _open(file: Path | None, assignments: tuple[str, ...]) -> tuple[Deployment | None, OpenTarget | None]:
    from toolkit.flows.target import open_target

    if file is None:
        return None, None
    settings = load_settings(file, assignments).deployment
    return settings, open_target(settings)


def _tell(ctx: click.Context, reports: Sequence[Report], output: str, *, everything: bool) -> None:
    rows = [row for report in reports for row in _rows(report)]
    rows.sort(key=lambda row: ORDER.index(row["severity"]))
    counts = {severity: sum(row["severity"] == severity for row in rows) for severity in ORDER}
    if output != "table":
        print_data({"findings": rows, "counts": counts}, output)
    else:
        shown = [row for row in rows if everything or row["severity"] != "ok"]
        print_table(COLUMNS, [[row[column] for column in COLUMNS] for row in shown])
        for row in shown:
            _explain(row, verbose=bool(ctx.obj and ctx.obj.get("verbose")))
        click.echo(", ".join(f"{count} {severity}" for severity, count in counts.items()), err=True)
    if counts["error"]:
        ctx.exit(1)


def _rows(report: Report) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [
        {"where": report.subject, **asdict(finding), "severity": finding.severity.value}
        | {"evidence": list(finding.evidence)}
        for finding in report.findings
    ]


def _explain(row: dict[str, Any], *, verbose: bool) -> None:
    """On stderr, below the table. What is ok is explained only to who asks for much."""
    if row["severity"] == "ok" and not verbose:
        return
    click.echo(f"\n{row['where']} {row['check']}: {row['symptom']}", err=True)
    for line in row["evidence"]:
        click.echo(f"  | {line}", err=True)
    for what in ("cause", "next_step", "source"):
        if row[what]:
            click.echo(f"  {what.replace('_', ' ')}: {row[what]}", err=True)
