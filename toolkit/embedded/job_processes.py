"""Jobs as their processes show them, for when slurmctld cannot be asked. Changes nothing."""

from __future__ import annotations

import re

from toolkit.embedded.places import places
from toolkit.embedded.processes import PROC, all_pids, read_proc
from toolkit.embedded.slurm_client import JobStatus
from toolkit.plan.embedded import EmbeddedPlan

_SHOWN = 4


def jobs_from_processes(plan: EmbeddedPlan) -> tuple[JobStatus, ...]:
    """The jobs that have processes; `name` tells these. Without root and freezer: the caller's jobs only."""
    found: dict[str, dict[int, str]] = {}
    for pid in all_pids():
        if (place := _by_control_group(plan, pid) or _by_environment(plan, pid)) is not None:
            job, node = place
            found.setdefault(job, {})[pid] = node
    return tuple(
        JobStatus(job_id=job, state="R", name=_spoken(sorted(pids)), nodes=",".join(sorted({*pids.values()})))
        for job, pids in sorted(found.items(), key=lambda item: int(item[0]))
    )


def saved_state_has(plan: EmbeddedPlan, jobs: tuple[JobStatus, ...]) -> bool:
    """Whether slurmctld wrote its state after every step of `jobs` had begun.

    It writes seconds after a change. A job that its saved state has not as running is ended by a slurmctld
    that starts with that state.
    """
    state = plan.root / "state" / "job_state"
    spool = places(plan).spool
    # A step's daemon makes its socket, <node>_<job>.<step>, as it starts.
    sockets = [path for job in jobs for path in spool.glob(f"*/*_{job.job_id}.*") if path.is_socket()]
    begun = max((path.stat().st_mtime for path in sockets), default=0.0)
    return state.is_file() and bool(sockets or not jobs) and state.stat().st_mtime > begun


def _by_control_group(plan: EmbeddedPlan, pid: int) -> tuple[str, str] | None:
    """Job and node, as the node's freezer group has them, which everybody may read."""
    groups = read_proc(PROC / str(pid) / "cgroup").decode(errors="replace")
    found = re.search(rf"/{places(plan).namespace('')}([^/\n]+)/.*/job_(\d+)\b", groups)
    return (found[2], found[1]) if found else None


def _by_environment(plan: EmbeddedPlan, pid: int) -> tuple[str, str] | None:
    """Job and node, as Slurm tells a job's first process, where the kernel has no freezer."""
    entries = read_proc(PROC / str(pid) / "environ").decode(errors="replace").split("\0")
    values = dict(entry.partition("=")[::2] for entry in entries)
    job, node = values.get("SLURM_JOB_ID", ""), values.get("SLURMD_NODENAME", "")
    ours = values.get("SLURM_CONF") == str(plan.slurm_conf)
    return (job, node) if ours and job.isdigit() and node else None


def _spoken(pids: list[int]) -> str:
    more = f" and {len(pids) - _SHOWN} more" if len(pids) > _SHOWN else ""
    return f"process{'es' * (len(pids) > 1)} {', '.join(map(str, pids[:_SHOWN]))}{more}"
