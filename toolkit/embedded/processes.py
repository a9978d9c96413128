"""Finds a cluster's processes by what they are, not by recorded ids, and ends them.

A daemon is known by its command line, a job's process by its node's network namespace or its environment.
So a lost or stale pid file confuses nothing. And a process id that went to a stranger is never signalled:
each process is looked at again once a pidfd holds it, before the signal is sent.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from toolkit.embedded.places import NAMESPACES, Places, places
from toolkit.plan.embedded import EmbeddedPlan

PROC = Path("/proc")
Belongs = Callable[[int], bool]


def find_daemons(plan: EmbeddedPlan) -> dict[str, list[int]]:
    """munged, slurmctld or a node's name -> process ids (normally one). Readable without root."""
    found: dict[str, list[int]] = {}
    for pid in all_pids():
        name = daemon_name(plan, pid)
        if name:
            found.setdefault(name, []).append(pid)
    return found


def daemon_name(plan: EmbeddedPlan, pid: int) -> str | None:
    """Which daemon of the plan's root `pid` is; None if it is none of them."""
    argv = command_line(pid)
    program = Path(argv[0]).name if argv else ""
    if program == "munged" and f"--socket={places(plan).munge_socket}" in argv:
        return "munged"
    if program in ("slurmctld", "slurmd") and str(plan.slurm_conf) in argv:
        return argv[argv.index("-N") + 1] if "-N" in argv else program
    return None


def in_our_namespace(where: Places) -> Belongs:
    """Whether a process lives in the network of one of our nodes. Needs root."""
    # A namespace's file is the namespace itself, so device and inode identify it.
    ours = {_identity(path) for path in NAMESPACES.glob("*") if where.owns_namespace(path.name)} - {None}
    return lambda pid: _identity(PROC / str(pid) / "ns" / "net") in ours


def of_our_jobs(plan: EmbeddedPlan) -> Belongs:
    """Whether a process was started by a slurmd or a job of ours, wherever it lives now. Needs root."""
    conf = f"SLURM_CONF={plan.slurm_conf}".encode()

    def belongs(pid: int) -> bool:
        environment = read_proc(PROC / str(pid) / "environ").split(b"\0")
        marks = (b"SLURM_JOB_ID=", b"SLURMD_NODENAME=")
        return conf in environment and any(entry.startswith(marks) for entry in environment)

    return belongs


def end(pids: Iterable[int], belongs: Belongs, *, signals: tuple[signal.Signals, ...], grace: float) -> None:
    """Sends each signal in turn to those still there, waiting up to `grace` seconds after each."""
    handles = _hold(pids, belongs)
    try:
        for number in signals:
            for handle in handles:
                _send(handle, number)
            handles = _wait_gone(handles, grace)
    finally:
        for handle in handles:
            os.close(handle)


def kill_all(belongs: Belongs, rounds: int = 20) -> None:
    """Kills every process that belongs, again until none is found: one may fork while we look."""
    spared = _ourselves()
    for _ in range(rounds):
        pids = [pid for pid in all_pids() if pid not in spared and belongs(pid)]
        if not pids:
            return
        end(pids, belongs, signals=(signal.SIGKILL,), grace=2.0)


def all_pids() -> list[int]:
    return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]


def command_line(pid: int) -> list[str]:
    """Arguments of a process; empty for one that is gone, a zombie or the kernel's."""
    return [
        part.decode(errors="replace") for part in read_proc(PROC / str(pid) / "cmdline").split(b"\0")[:-1]
    ]


def _ourselves() -> set[int]:
    """This process and those it runs under: a toolkit inside a job of the cluster must not end itself."""
    pid, spared = os.getpid(), set()
    while pid > 0:
        spared.add(pid)
        # The command name, in parentheses, may hold anything: the parent's id is the 2nd field after it.
        fields = read_proc(PROC / str(pid) / "stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return spared


def _hold(pids: Iterable[int], belongs: Belongs) -> list[int]:
    handles = []
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if belongs(pid):
            handles.append(handle)
        else:
            os.close(handle)
    return handles


def _send(handle: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return  # it ended by itself, which is what was wanted


def _wait_gone(handles: list[int], grace: float) -> list[int]:
    """Closes the handles of those that end within `grace` seconds; returns the rest."""
    poll, left, deadline = select.poll(), set(handles), time.monotonic() + grace
    for handle in left:
        poll.register(handle, select.POLLIN)
    while left and (remaining := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(remaining * 1000):
            poll.unregister(handle)
            left.remove(handle)
            os.close(handle)
    return list(left)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return status.st_dev, status.st_ino


def read_proc(path: Path) -> bytes:
    """A file of /proc; empty if its process is gone or is another user's."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
