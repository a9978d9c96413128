"""toolkit report: figures, page and verdict of a sweep's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import output_option
from toolkit.cli.output import print_data, print_table
from toolkit.errors import ResultsInvalid, ToolkitError

if TYPE_CHECKING:
    from toolkit.report.results import Results

Folder = click.Path(path_type=Path, file_okay=False)
UNITS = "times: ms, mean of turns from the second on; ratio: OFF / ON; MiB: of a readback"


@click.group()
def cli() -> None:
    """Build figures, page and verdict of a sweep."""


@cli.command()
@click.argument("run", type=Folder, required=False)
@output_option("table", "json")
def build(run: Path | None, output: str) -> None:
    """Write figures, page and verdict of a sweep.

    RUN is a sweep's folder, by default the newest under runs/; it gets results.json, ttft.png, prefill.png
    and index.html. Exits 4 if the results must not be used; the report then says why.

    \b
    Example: toolkit report build runs/embedded-20260101-120000
    """
    from toolkit.report.build import build as build_report

    folder = run or _newest(Path("runs"))
    print_report(folder, build_report(folder), output)


def print_report(folder: Path, results: Results, output: str) -> None:
    """The table or JSON of a report and where its page is; raises ResultsInvalid if it must not be used."""
    if output == "json":
        print_data(results.to_json(), "json")
    else:
        click.echo(UNITS, err=True)
        print_table(*_summary(results))
    click.echo(f"report: {folder / 'index.html'}", err=True)
    if results.valid:
        click.echo(_verdict(results), err=True)
    else:
        raise ResultsInvalid(
            "the sweep is invalid:\n" + "\n".join(f"  {reason}" for reason in results.reasons),
            next_step="find the cause in the logs of the sweep's folder, then run the sweep again",
        )


@cli.command()
@click.argument("first", metavar="RUN", type=Folder)
@click.argument("second", metavar="RUN", type=Folder)
@output_option("table", "json")
def compare(first: Path, second: Path, output: str) -> None:
    """Compare the TTFT of two sweeps.

    Per prompt length, with the ratio of the first to the second: above 1, the second is faster. Exits 4 if
    one of them is invalid.

    \b
    Example: toolkit report compare runs/qwen-a runs/qwen-b
    """
    from toolkit.report.build import load_results
    from toolkit.report.compare import compare_results

    loaded = {folder: load_results(folder) for folder in (first, second)}
    lines = compare_results(loaded[first], loaded[second])
    if output == "json":
        print_data(lines, "json")
    else:
        click.echo("mean TTFT in ms of turns from the second on; ratio: first / second", err=True)
        columns = ("prompt tokens", "OFF first", "OFF second", "ratio", "ON first", "ON second", "ratio")
        print_table(columns, [[_cell(value) for value in line.values()] for line in lines])
    if invalid := [str(folder) for folder, results in loaded.items() if not results.valid]:
        raise ResultsInvalid(
            f"invalid results in {' and '.join(invalid)}", next_step="open index.html there for the reasons"
        )


def _verdict(results: Results) -> str:
    longest = results.points[-1]
    off, on = longest.off.ttft_ms, longest.on.ttft_ms
    if off is None or on is None or longest.ttft_ratio is None:
        raise AssertionError("summarize() gives a reason for every point without a ratio")
    return (
        f"valid: at {longest.prompt_length:,} prompt tokens the first token takes {off.mean:,.0f} ms OFF and "
        f"{on.mean:,.0f} ms ON ({longest.ttft_ratio:.1f}x)"
    )


def _newest(runs: Path) -> Path:
    sweeps = [folder.parent for folder in runs.glob("*/software.json")]
    if not sweeps:
        raise ToolkitError(
            f"no sweep under {runs.resolve()}", next_step="name a sweep's folder, or run `toolkit sweep run`"
        )
    return max(sweeps, key=lambda folder: folder.stat().st_mtime)


def _summary(results: Results) -> tuple[tuple[str, ...], list[list[str]]]:
    columns = ("tokens", "TTFT OFF", "ON", "ratio", "prefill OFF", "ON", "ratio", "KV read", "MiB")
    rows: list[list[str]] = []
    for point in results.points:
        kv = point.kv_transfer
        means = [s.mean if s else None for s in (point.off.ttft_ms, point.on.ttft_ms)]
        prefill = [s.mean if s else None for s in (point.off.prefill_ms, point.on.prefill_ms)]
        parts = [kv.ms, kv.mb] if kv else [None, None]
        values: list[Any] = [*means, point.ttft_ratio, *prefill, point.prefill_ratio, *parts]
        rows.append([str(point.prompt_length), *map(_cell, values)])
    return columns, rows


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    # No thousands separators: nine columns fit a terminal, and a pipe's reader gets numbers.
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
