"""The command line: parse, call, print. Each noun's module is imported only when it is asked for."""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any, NoReturn

import click

from toolkit import __version__
from toolkit.errors import ToolkitError

# noun -> what it is, as `toolkit --help` lists it. The module toolkit.cli.<noun> exports `cli`.
NOUNS = {
    "cluster": "Make, look at and take down the cluster that engines run on.",
    "image": "Build and look after the nodes' AMI.",
    "job": "Render, submit and follow the jobs of a deployment.",
    "sweep": "Measure two-way KV transfer OFF against ON over prompt lengths.",
    "report": "Build figures, page and verdict of a sweep.",
    "router": "The KV-aware multi-turn router.",
    "doctor": "Find what is wrong with a cluster or a node, with evidence and the next step.",
    "settings": "Show, check and describe deployment settings.",
    "demo": "The whole path on this machine, from nothing to a verdict.",
}


class Nouns(click.Group):
    """A group that imports a noun's module when the noun is used, and turns our errors into exits."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        command: click.Command = importlib.import_module(f"toolkit.cli.{cmd_name}").cli
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message} Nouns: {', '.join(NOUNS)}.", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Nouns"):
            formatter.write_dl(list(NOUNS.items()))


@click.group(
    cls=Nouns,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 failed, 2 usage or settings, 3 a job ended badly, 4 results invalid, "
    "130 stopped by Ctrl-C.",
)
@click.version_option(__version__, prog_name="toolkit")
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, verbose: bool) -> None:
    """Prefill/decode serving with two-way KV transfer: clusters, jobs, router, sweeps.

    \b
    Everything on this machine:   toolkit demo
    A cluster and its jobs:       toolkit cluster create -f deployments/embedded.yaml
                                  toolkit job submit -f deployments/embedded.yaml
    """
    ctx.obj = {"verbose": verbose}


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(args: list[str] | None = None) -> None:
    """Entry point: runs the command and exits with the code of the table in `toolkit --help`."""
    for name in (signal.SIGTERM, signal.SIGHUP):
        # As Ctrl-C: a sweep that is told to stop ends its jobs.
        signal.signal(name, _interrupt)
    verbose = bool({"-v", "--verbose"} & set(sys.argv if args is None else args))
    try:
        code: Any = cli.main(args=args, prog_name="toolkit", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("stopped; the state was kept, run the command again to go on", err=True)
        sys.exit(130)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ToolkitError as error:
        if verbose:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has gone; nothing is left to tell.
        sys.stdout = None
        sys.exit(1)
    except OSError as error:
        if verbose:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
