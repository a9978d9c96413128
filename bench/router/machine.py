"""What was measured on, and with which versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from bench.router import BenchFailed, peer

ROOT = Path(__file__).parents[2]


class TooFewCores(BenchFailed):
    """The router and the load need a core each."""


def two_cores() -> tuple[int, int]:
    """The router's core and the load's: the first two that this process may use.

    Raises:
        TooFewCores: there is one only.
    """
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise TooFewCores(
            "the router and the load each need a core of their own, and this process may use one only"
        )
    return usable[0], usable[1]


def facts(of_form: str = "") -> dict[str, str]:
    """Name and value of each fact, for the report; `of_form` is said of our router."""
    parts = ("uvloop", "httptools", "orjson")
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "with": ", ".join(f"{name} {version(name)}" for name in parts),
        "ours": f"pd-toolkit {version('pd-toolkit')}{_commit()}{of_form}",
        "vllm-router": peer.VERSION,
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def _commit() -> str:
    """` at 1a2b3c4`, with `+` where the tree differs; empty outside a clone."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return f" at {done.stdout.strip()}" if done.returncode == 0 else ""
