"""vllm-router from PyPI, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.router import BenchFailed

VERSION = "0.1.17"
FOLDER = Path(__file__).parents[2] / ".venv-bench"


class InstallFailed(BenchFailed):
    """vllm-router could not be installed."""


def installed() -> Path:
    """The command vllm-router of that version; installs it where it is not there yet.

    Raises:
        InstallFailed: pip could not.
    """
    command, mark = FOLDER / "bin" / "vllm-router", FOLDER / f"vllm-router-{VERSION}"
    if mark.exists() and command.exists():
        return command
    print(f"installing vllm-router {VERSION} into {FOLDER.name}", file=sys.stderr)
    _run(sys.executable, "-m", "venv", "--clear", str(FOLDER))
    pip = (str(FOLDER / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, f"vllm-router=={VERSION}")
    mark.touch()
    return command


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise InstallFailed(f"{' '.join(command)}\n{done.stderr.strip()[-2000:]}")
