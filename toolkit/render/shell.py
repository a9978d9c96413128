"""The one function through which every value enters a shell script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath


def quote(value: str | int | float | PurePath) -> str:
    """`value` as one word of a POSIX shell; raises ValueError for a NUL, which no shell can hold."""
    text = str(value)
    if "\0" in text:
        raise ValueError("a NUL byte can't be written into a shell script")
    return shlex.quote(text)


def command(arguments: Sequence[str]) -> str:
    """A command, an option and its value a line, so that a reader finds each."""
    lines: list[list[str]] = [[]]
    for argument in arguments:
        if argument.startswith("-"):
            lines.append([])
        lines[-1].append(quote(argument))
    return " \\\n  ".join(" ".join(line) for line in lines if line)
