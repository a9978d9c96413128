"""Progress of what takes minutes: lasting lines, and on a terminal one line below them that moves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.cli.output import Progress, progress


@contextmanager
def live_line() -> Iterator[tuple[Progress, Progress]]:
    """Two functions: one for lines that stay, one for the text of the moving line; without a terminal the
    second one prints nothing. Ask nothing inside."""
    if not sys.stderr.isatty():
        yield progress(), lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with console.status("") as status:
        yield (
            lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
            lambda text: status.update(escape(text)),
        )
