"""What our map of conversations costs: the lines of `bench.router.memory`, run as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.router import BenchFailed

ROOT = Path(__file__).parents[2]
FULL = ("--conversations", "10000", "--entries", "1000", "100000")
QUICK = ("--conversations", "1000", "--block-sizes", "16", "--entries", "1000")
SECONDS = 240


class MapCostFailed(BenchFailed):
    """The measurement of the map ended badly."""


def lines(options: tuple[str, ...]) -> list[str]:
    """Its figures, one a line.

    Raises:
        MapCostFailed: it did not come to an end, or ended with an error.
    """
    command = [sys.executable, "-m", "bench.router.memory", *options]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise MapCostFailed(f"{' '.join(command[1:])} took more than {SECONDS} s") from error
    if done.returncode:
        raise MapCostFailed(f"{' '.join(command[1:])}:\n{done.stderr.strip()[-2000:]}")
    return [line for line in done.stdout.splitlines() if "conversations" in line or "entries" in line]
