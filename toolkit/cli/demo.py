"""toolkit demo: the whole path on this machine."""

from __future__ import annotations

import click

from toolkit.cli.output import progress_display
from toolkit.cli.report import print_report


@click.command()
@click.option("--name", default="demo", show_default=True, help="Name of the sweep; its folder is made anew.")
@click.option("--keep", is_flag=True, help="Leave the cluster up afterwards.")
@click.option(
    "--set",
    "assignments",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set one setting of the embedded deployment.",
)
def cli(name: str, keep: bool, assignments: tuple[str, ...]) -> None:
    """The whole path on this machine: a real Slurm, real vLLM on CPU, two-way KV transfer OFF and ON.

    Makes what is missing, runs the sweep of deployments/embedded.yaml, ends with the verdict and the page,
    and takes the cluster down again.
    """
    import os
    from importlib.resources import as_file

    from toolkit.data import shipped
    from toolkit.flows.demo import run_demo
    from toolkit.settings.load import load

    with as_file(shipped("deployments", "embedded.yaml")) as file:
        settings = load(file, assignments, os.environ).deployment
    with progress_display() as (tell, bar):
        folder, results = run_demo(settings, name, tell, bar, keep=keep)
    print_report(folder, results, "table")
