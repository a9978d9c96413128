"""`toolkit router`: the KV-aware router in front of prefill and decode engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from toolkit.router.config import RouterConfig

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False, path_type=Path)
_SECONDS = click.FloatRange(min=0, min_open=True)
_FROM_ONE = click.IntRange(min=1)
_FROM_ZERO = click.IntRange(min=0)


class _Option(click.Option):
    """An option that stands below a heading of the help."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Defaults and variables; the range of a number is told when it is left."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class _Headed(click.Command):
    """A command with many options: the help lists them below headings, in the order of their definition."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "heading", "Other"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _below(heading: str) -> Callable[..., Callable[[F], F]]:
    """`click.option` for options below that heading, which show their default."""

    def option(*names: str, **settings: Any) -> Callable[[F], F]:
        return click.option(*names, cls=_Option, heading=heading, **{"show_default": True, **settings})

    return option


_engines = _below("Engines")
_clients = _below("Clients")
_paths = _below("Paths")
_memory = _below("Conversations and their KV")
_limits = _below("Limits")


@click.group()
def cli() -> None:
    """Run the KV-aware prefill/decode router."""


@cli.command(cls=_Headed)
@_engines("--prefill", multiple=True, metavar="URL", help="A prefill engine; repeatable.")
@_engines("--decode", multiple=True, metavar="URL", help="A decode engine; repeatable.")
@_engines(
    "--members",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Engines that come and go: a YAML file `prefill: [URL, ...]`, `decode: [URL, ...]`, or the folder "
    "of a run. Looked at each second; beside --prefill and --decode.",
)
@_engines(
    "--engine-key-file",
    type=_FILE,
    metavar="FILE",
    help="API key that the engines want, in a file closed to others; needs --api-keys.",
)
@_engines(
    "--health-interval",
    default=2.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds between two checks of an engine.",
)
@_engines(
    "--eject-after",
    default=2,
    type=_FROM_ONE,
    metavar="N",
    help="So many bad checks or failed requests in a row end an engine's traffic for a while.",
)
@_clients("--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on.")
@_clients("--port", default=8000, type=click.IntRange(0, 65535), metavar="PORT", help="0: a free one.")
@_clients("--tls-cert", type=_FILE, metavar="FILE", help="Certificate chain, PEM: serve HTTPS.")
@_clients(
    "--tls-key", type=_FILE, metavar="FILE", help="Its key, PEM, not encrypted. Renewed files are read again."
)
@_clients(
    "--api-keys",
    type=_FILE,
    metavar="FILE",
    help="Who may ask: lines `name:key` in a file closed to others, read again when it changes. The clients' "
    "keys are not passed on to the engines.",
)
@_clients(
    "--access-log",
    type=_FILE,
    metavar="FILE",
    help="One line per request there instead of on standard error.",
)
@_paths(
    "--path",
    default="auto",
    type=click.Choice(["auto", "prefill", "readback", "decode-local"]),
    metavar="NAME",
    help="The path of turns that may take it: prefill, readback or decode-local; auto: the one measured to "
    "be the quickest. A request's header X-KV-Path goes first.",
)
@_paths(
    "--decode-local-tokens",
    default=512,
    type=_FROM_ZERO,
    metavar="N",
    help="Largest number of new tokens of a turn that decode may compute alone.",
)
@_paths(
    "--decode-local-pending-tokens",
    default=2048,
    type=_FROM_ZERO,
    metavar="N",
    help="The same for all turns that one decode engine has not answered yet.",
)
@_paths(
    "--decode-alone/--no-decode-alone",
    default=True,
    help="While no prefill engine takes requests, decode computes whole prompts itself; else 503.",
)
@_memory(
    "--ttl",
    default=450.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds a KV handle is kept; must stay below decode's decoder_kv_blocks_ttl.",
)
@_memory(
    "--lease-hold",
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds for which decode is asked to go on holding a conversation's KV; default: --ttl, without "
    "asking.",
)
@_memory(
    "--lease-secret-file",
    type=_FILE,
    metavar="FILE",
    envvar="PD_LEASE_SECRET_FILE",
    show_envvar=True,
    help="Secret of the engines' lease routes, in a file closed to others.",
)
@_memory(
    "--claim/--no-claim",
    default=True,
    help="Tell decode which KV is about to be read, so that it is not given up under pressure.",
)
@_memory(
    "--map-file",
    type=_FILE,
    metavar="FILE",
    help="Keep the map of conversations there across restarts; on a local disk.",
)
@_limits(
    "--max-concurrent", default=1024, type=_FROM_ONE, metavar="N", help="Requests answered at the same time."
)
@_limits(
    "--max-queue",
    default=1024,
    type=_FROM_ZERO,
    metavar="N",
    help="Requests that may wait besides; others get 429.",
)
@_limits(
    "--queue-timeout",
    default=30.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds a request may wait before it gets 429.",
)
@_limits("--max-connections", default=16384, type=_FROM_ONE, metavar="N", help="Open connections of clients.")
@_limits(
    "--header-timeout",
    default=30.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds a client has to send a request's headers.",
)
@_limits(
    "--keepalive",
    default=75.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds an idle client connection is kept.",
)
@_limits(
    "--prefill-timeout",
    default=600.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds a prefill engine has to answer, and any engine what is no generation.",
)
@_limits(
    "--stall-timeout",
    default=300.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds of silence that end a stream; also of a client that does not read.",
)
@_limits(
    "--answer-timeout",
    default=3600.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds a decode engine has for an answer that is not streamed.",
)
@_limits(
    "--drain-timeout",
    default=60.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Seconds that requests get to finish after SIGTERM.",
)
def serve(**options: Any) -> None:
    """Serve the OpenAI API in front of the engines until SIGTERM; requests in flight then finish.

    \b
    Example: toolkit router serve --prefill http://10.0.0.1:8100 \\
               --decode http://10.0.0.2:8200
    """
    config = config_of(**options)
    from toolkit.router.serve import serve as run

    run(config)


def config_of(**options: Any) -> RouterConfig:
    """The options of `serve` as the router's configuration. Raises SettingsError."""
    from toolkit.router.config import RouterConfig

    return RouterConfig(**{field_of(name): value for name, value in options.items()})


def field_of(option: str) -> str:
    """The configuration's name of an option: its seconds say so."""
    return f"{option}_s" if option in _SECONDS_OF else option


_SECONDS_OF = {
    "ttl",
    "lease_hold",
    "queue_timeout",
    "header_timeout",
    "keepalive",
    "prefill_timeout",
    "stall_timeout",
    "answer_timeout",
    "drain_timeout",
    "health_interval",
}
