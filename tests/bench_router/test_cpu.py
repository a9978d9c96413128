"""CPU time is that of the whole process tree, ended children included."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.router import cpu

# Each burns, says what it used by its own account, and waits to be let go.
BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
TELL = "import sys; print(time.process_time(), flush=True); sys.stdin.readline()\n"
WITH_CHILD = (
    "import subprocess, sys\n"
    f"child = subprocess.Popen([sys.executable, '-c', {BURN + TELL!r}], stdout=subprocess.PIPE)\n"
    "told = float(child.stdout.readline())\n"
    f"{BURN}print(told + time.process_time(), flush=True); sys.stdin.readline()\n"
)
ENDED_CHILD = (
    "import subprocess, sys, resource\n"
    f"subprocess.run([sys.executable, '-c', {BURN!r}])\n"
    "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    f"{BURN}print(used.ru_utime + used.ru_stime + time.process_time(), flush=True); sys.stdin.readline()\n"
)


@contextmanager
def told(script: str) -> Iterator[tuple[int, float]]:
    """A process that waits, and the seconds of CPU that it says it has used."""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        yield process.pid, float(process.stdout.readline())
        process.stdin.write(b"\n")


@pytest.mark.parametrize(
    "script", [BURN + TELL, WITH_CHILD, ENDED_CHILD], ids=["one", "child", "ended-child"]
)
def test_the_tree_used_what_its_processes_say(script: str) -> None:
    with told(script) as (pid, seconds):
        # A child's start-up before its own clock is counted too, and a tick is 10 ms.
        assert seconds - 0.02 <= cpu.used(pid) <= seconds + 0.15


def test_the_clock_is_what_proc_stat_rounds_to_ticks() -> None:
    with told(BURN + TELL) as (pid, _):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        assert cpu.used(pid) == pytest.approx((int(fields[11]) + int(fields[12])) / 100, abs=0.021)


def test_a_process_that_is_gone_has_no_time() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ProcessLookupError):
        cpu.used(process.pid)


def test_the_cores_grow_busier_and_an_unknown_one_is_an_error() -> None:
    before = cpu.core(0)
    with told(BURN + TELL):
        after = cpu.core(0)
    assert after.busy >= before.busy > 0
    with pytest.raises(LookupError):
        cpu.core(100_000)
