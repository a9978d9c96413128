"""`toolkit router`: the KV-aware router in front of prefill and decode engines."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def cli() -> None:
    """Run the KV-aware prefill/decode router."""


@cli.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: a free one.")
@click.option("--prefill", multiple=True, required=True, metavar="URL", help="A prefill engine; repeatable.")
@click.option("--decode", multiple=True, required=True, metavar="URL", help="A decode engine; repeatable.")
@click.option(
    "--ttl",
    default=450.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds a KV handle is kept; must stay below decode's decoder_kv_blocks_ttl.",
)
@click.option(
    "--access-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for one line per request instead of standard error.",
)
def serve(
    host: str,
    port: int,
    prefill: tuple[str, ...],
    decode: tuple[str, ...],
    ttl: float,
    access_log: Path | None,
) -> None:
    """Serve the OpenAI API in front of the engines until SIGTERM; requests in flight then finish."""
    from toolkit.router.config import RouterConfig
    from toolkit.router.serve import serve as run

    config = RouterConfig(
        prefill=prefill, decode=decode, host=host, port=port, ttl_s=ttl, access_log=access_log
    )
    run(config)
