"""What the C library's allocator is told: a process of its own shows that freed memory stays."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

LOOK = """
import sys
from pathlib import Path
from toolkit.router.allocator import keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "kept":
    assert keep_freed_memory()
before = resident()
bodies = [bytes([1]) * (1 << 20) for _ in range(16)]
del bodies
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_the_memory_of_bodies_stays_with_the_process():
    def left(how: str) -> int:
        run = subprocess.run([sys.executable, "-c", LOOK, how], capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert left("returned") < 4 << 20
    assert left("kept") > 12 << 20
