"""The few questions the embedded cluster asks its own Slurm, each with a time limit."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from toolkit.embedded.tools import tool
from toolkit.errors import ToolkitError

_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class NodeStatus:
    """`state` in sinfo's compact form (idle, mix, alloc, down*...); `reason`: why it is unfit, or empty."""

    state: str
    reason: str

    @property
    def fit(self) -> bool:
        return self.state.rstrip("~#@^") in ("idle", "mix", "alloc", "comp")


@dataclass(frozen=True)
class JobStatus:
    job_id: str
    state: str
    name: str
    nodes: str


class SlurmClient:
    """Slurm's client programs with this cluster's configuration."""

    def __init__(self, slurm_conf: Path) -> None:
        self._environment = os.environ | {"SLURM_CONF": str(slurm_conf)}

    def nodes(self) -> dict[str, NodeStatus]:
        """Node name -> status. Raises ToolkitError if slurmctld does not answer within 3 s."""
        lines = self._run("sinfo", "-h", "-N", "-o", f"%N{_SEPARATOR}%t{_SEPARATOR}%E").splitlines()
        parts = (line.split(_SEPARATOR, 2) for line in lines)
        return {name: NodeStatus(state, "" if reason == "none" else reason) for name, state, reason in parts}

    def jobs(self) -> list[JobStatus]:
        """Jobs that wait, run or end; raises as `nodes` does."""
        # The job's name comes last: it may hold anything, even a line break, which is then cut off.
        form = _SEPARATOR.join(("%i", "%t", "%N", "%j"))
        found = []
        for line in self._run("squeue", "-h", "-o", form).splitlines():
            parts = line.split(_SEPARATOR, 3)
            if len(parts) == 4:
                found.append(JobStatus(job_id=parts[0], state=parts[1], nodes=parts[2], name=parts[3]))
        return found

    def cancel_all(self, wait: float) -> None:
        """Cancels every job and waits up to `wait` seconds; a silent slurmctld ends the wait."""
        deadline = time.monotonic() + wait
        try:
            while (jobs := self.jobs()) and time.monotonic() < deadline:
                waiting = sorted({job.job_id for job in jobs if job.state != "CG"})
                if waiting:
                    self._run("scancel", *waiting)
                time.sleep(0.1)
        except ToolkitError:
            return  # what it cannot end is killed next, by the caller

    def _run(self, name: str, *arguments: str) -> str:
        command = [tool(name), *arguments]
        try:
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=3, check=False
            )
        except subprocess.TimeoutExpired:
            raise ToolkitError(f"Slurm does not answer: `{name}` took over 3 s") from None
        if done.returncode != 0:
            raise ToolkitError(f"Slurm does not answer: `{name}`: {done.stderr.strip()}")
        return done.stdout
