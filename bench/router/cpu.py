"""CPU time of processes, and what else the pinned cores did meanwhile."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """The process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def used(root: int) -> float:
    """Seconds of CPU, user and system, that the process tree has used since its start.

    A living process is asked for its CPU clock, which is what /proc/PID/stat shows as utime and stime, but
    not rounded to ticks of 10 ms; children that ended are in their parent's cutime and cstime.

    Raises:
        ProcessLookupError: the root is gone.
    """
    seconds = 0.0
    for pid in tree(root):
        try:
            ended = sum(int(ticks) for ticks in _stat(pid)[13:15])
            seconds += time.clock_gettime(_cpu_clock(pid)) + ended / _TICK
        except OSError:
            if pid == root:
                raise ProcessLookupError(f"process {root} is gone") from None
    return seconds


def _cpu_clock(pid: int) -> int:
    """The clock id of a process's CPU time, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | 2


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the command's name: the state is the first."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


@dataclass(frozen=True, slots=True)
class Core:
    """Seconds that a core has spent since the start of the machine."""

    busy: float
    stolen: float


def core(number: int) -> Core:
    """What /proc/stat says of one core; `stolen` is time that the hypervisor gave to others."""
    for line in (_PROC / "stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{number}":
            user, nice, system, _, _, irq, softirq, steal, *_ = (int(tick) / _TICK for tick in ticks)
            return Core(user + nice + system + irq + softirq, steal)
    raise LookupError(f"/proc/stat has no core {number}")
