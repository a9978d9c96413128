"""The only printer: results on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import TaskID

Progress = Callable[[str], None]


def print_data(data: Any, output: str) -> None:
    """`data` as json or yaml."""
    if output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table: drawn by rich on a terminal, tab-separated below a header in a pipe."""
    if not sys.stdout.isatty():
        click.echo("\t".join(column.upper() for column in columns))
        for row in rows:
            click.echo("\t".join(map(_cell, row)))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        # The first column names the row, so it is never broken.
        table.add_column(column.upper().replace("_", " "), overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*map(_cell, row))
    Console().print(table)


def _cell(value: object) -> str:
    """As YAML would have it, so that a setting can be pasted back: true, [UCX], nothing for null."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], output: str) -> None:
    """Rows as a table, or as a list of mappings in json or yaml."""
    if output == "table":
        print_table(columns, rows)
    else:
        print_data([dict(zip(columns, row, strict=True)) for row in rows], output)


def progress() -> Progress:
    """A plain line on stderr for each step."""
    return lambda message: click.echo(message, err=True)


@contextmanager
def progress_display() -> Iterator[tuple[Progress, Callable[[int, int, str], None]]]:
    """Two functions: one for lines, and one (done, total, what) that draws a bar on a terminal, below those
    lines, and otherwise prints a line whenever `done` moves."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bars:
            tasks: dict[str, TaskID] = {}

            def draw(done: int, total: int, what: str) -> None:
                if what not in tasks:
                    tasks[what] = bars.add_task(what, total=total)
                bars.update(tasks[what], completed=done)

            def tell(message: str) -> None:
                # Through the bars' console, which keeps the bars below.
                bars.console.print(message, markup=False, highlight=False, soft_wrap=True)

            yield tell, draw
        return
    told: set[tuple[int, int, str]] = set()

    def count(done: int, total: int, what: str) -> None:
        if (done, total, what) not in told:
            told.add((done, total, what))
            click.echo(f"  {what}: {done} of {total}", err=True)

    yield progress(), count
