"""Where a benchmark runs, for its first line of output; and the tests' engines for those that need them."""

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "src")]


def describe() -> str:
    """Machine and versions, in one line."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}, vLLM {_version('vllm')}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


@contextmanager
def tiny_model() -> Iterator[tuple[Path, Path]]:
    """The tests' model, and a folder for logs."""
    import tiny_model

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "model").mkdir()
        yield tiny_model.build(place / "model"), place
