"""toolkit sweep: measure two-way KV transfer OFF against ON."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.options import again, load_settings, output_option, settings_options
from toolkit.cli.output import print_rows, progress, progress_display

if TYPE_CHECKING:
    from toolkit.flows.sweep import Sweep

name_option = click.option("--name", required=True, help="Name of the sweep and its folder.")


@click.group()
def cli() -> None:
    """Measure two-way KV transfer OFF against ON over prompt lengths."""


@cli.command()
@settings_options
@output_option("table", "json", "yaml")
def plan(file: Path, assignments: tuple[str, ...], output: str) -> None:
    """Show what a sweep would ask; nothing is started.

    \b
    Example: toolkit sweep plan -f deployments/qwen3-32b-p5en.yaml
    """
    from toolkit.plan.sweep import plan_sweep

    settings = load_settings(file, assignments).deployment
    schedule = plan_sweep(settings, "on")
    rows = [
        (
            point.prompt_length,
            len(point.conversations),
            schedule.turns,
            2 * len(point.conversations) * schedule.turns,
        )
        for point in schedule.points
    ]
    print_rows(("prompt_tokens", "conversations", "turns", "requests_off_and_on"), rows, output)


@cli.command()
@settings_options
@click.option("--name", help="Name of the sweep and its folder; default: deployment and time.")
def run(file: Path, assignments: tuple[str, ...], name: str | None) -> None:
    """Run OFF, then ON; print the sweep's folder.

    Engines and router are started anew for each.

    \b
    Example: toolkit sweep run -f deployments/embedded.yaml --name first
    """
    sweep = _open(file, assignments, name)
    tell = progress()
    tell(f"sweep {sweep.name} in {sweep.folder.root}")
    _run(sweep, again(file, assignments))


@cli.command()
@settings_options
@name_option
def resume(file: Path, assignments: tuple[str, ...], name: str) -> None:
    """Go on with a sweep that was stopped.

    Conversations that are whole are not held again.

    \b
    Example: toolkit sweep resume -f deployments/embedded.yaml --name first
    """
    _run(_open_existing(file, assignments, name), again(file, assignments))


@cli.command()
@settings_options
@name_option
@output_option("table", "json", "yaml")
def status(file: Path, assignments: tuple[str, ...], name: str, output: str) -> None:
    """Show how many requests are answered."""
    from toolkit.flows.sweep import LEGS

    sweep = _open_existing(file, assignments, name)
    rows = [(leg, sweep.done(leg), sweep.schedule(leg).expected_rows) for leg in LEGS]
    print_rows(("leg", "done", "of"), rows, output)


@cli.command()
@settings_options
@name_option
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where to; default: runs/NAME in this folder.",
)
def download(file: Path, assignments: tuple[str, ...], name: str, to: Path | None) -> None:
    """Fetch a sweep's folder to this machine, for `toolkit report build`.

    What is here already is not fetched again.

    \b
    Example: toolkit sweep download -f deployments/qwen3-32b-p5en.yaml --name first
    """
    click.echo(_fetched(_open_existing(file, assignments, name), to))


def _run(sweep: Sweep, same: str) -> None:
    from toolkit.errors import JobFailed

    try:
        with progress_display() as (tell, bar):
            sweep.run(tell, bar)
    except (JobFailed, KeyboardInterrupt):
        progress()(f"what is done is kept: `toolkit sweep resume {same} --name {sweep.name}` goes on")
        raise
    folder = _fetched(sweep, None) if sweep.target.remote else Path(sweep.folder.root)
    progress()(f"done; `toolkit report build {folder}` makes figures, page and verdict")
    click.echo(folder)


def _fetched(sweep: Sweep, to: Path | None) -> Path:
    from toolkit.flows.download import download as fetch

    return fetch(sweep.target.head, sweep.folder.root, to or Path("runs") / sweep.name, progress())


def _open_existing(file: Path, assignments: tuple[str, ...], name: str) -> Sweep:
    from toolkit.errors import SettingsError

    sweep = _open(file, assignments, name)
    if not sweep.exists:
        raise SettingsError(f"no sweep in {sweep.folder.root}.", next_step="`toolkit sweep run` starts one")
    return sweep


def _open(file: Path, assignments: tuple[str, ...], name: str | None) -> Sweep:
    from toolkit.flows.sweep import open_sweep
    from toolkit.flows.target import open_target

    settings = load_settings(file, assignments).deployment
    chosen = name or f"{settings.name}-sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    return open_sweep(settings, open_target(settings), chosen)
