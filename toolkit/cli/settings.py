"""toolkit settings: what is set, where it comes from, what can be set."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli.options import load_settings, output_option, settings_options
from toolkit.cli.output import print_data, print_rows


@click.group()
def cli() -> None:
    """Show, check and describe deployment settings."""


@cli.command()
@settings_options
@output_option("table", "json", "yaml")
def show(file: Path, assignments: tuple[str, ...], output: str) -> None:
    """Every setting with its value and its source.

    \b
    Example: toolkit settings show -f deployments/embedded.yaml --set kv.bidirectional=false
    """
    loaded = load_settings(file, assignments)
    print_rows(("key", "value", "source"), loaded.rows(), output)


@cli.command()
@settings_options
def check(file: Path, assignments: tuple[str, ...]) -> None:
    """Check the settings; nothing is started.

    \b
    Example: toolkit settings check -f deployments/qwen3-32b-p5en.yaml
    """
    deployment = load_settings(file, assignments).deployment
    click.echo(f"{file}: valid ({deployment.name}, {deployment.target.kind})", err=True)


@cli.command()
def schema() -> None:
    """The JSON schema of a settings file.

    \b
    Example: toolkit settings schema > deployment.schema.json
    """
    from toolkit.settings.deployment import Deployment

    print_data(Deployment.model_json_schema(), "json")
