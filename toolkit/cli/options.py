"""Options that mean the same in every command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from toolkit.settings.load import Loaded

F = TypeVar("F", bound=Callable[..., Any])


def settings_options(command: F) -> F:
    """-f and --set; the command receives `file` and `assignments`, for `load_settings`."""
    command = click.option(
        "--set",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set one setting, such as kv.bidirectional=false; beats environment and file.",
    )(command)
    return click.option(
        "-f",
        "--file",
        "file",
        type=click.Path(path_type=Path),
        required=True,
        metavar="FILE",
        help="Deployment settings, YAML.",
    )(command)


def output_option(*formats: str) -> Callable[[F], F]:
    """-o; the command receives `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Form of the result on stdout.",
    )


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the very text that would be sent; do nothing."
)


def confirm(what: str, *, yes: bool) -> None:
    """Asks on a terminal; without one, or after a no, the command ends with nothing done."""
    import sys

    from toolkit.errors import ToolkitError

    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"This will {what}, and there is no terminal to ask on. Add --yes to go on.")
    if not click.confirm(f"This will {what}. Go on?", err=True):
        raise ToolkitError("nothing was done.")


def load_settings(file: Path, assignments: tuple[str, ...]) -> Loaded:
    import os

    from toolkit.settings.load import load

    return load(file, assignments, os.environ)


def again(file: Path, assignments: tuple[str, ...]) -> str:
    """`-f` and `--set` as they were given, for a command that we suggest."""
    from toolkit.settings.load import arguments

    return arguments(file, assignments)
