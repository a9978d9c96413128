"""Slurm: argument lists and parsers (pure, at the top), and the few calls that use them on a Head.

States come from `squeue --json`, whose shape differs: 22.05 gives plain values and the raw wait status,
24.11 and 26.05 lists and {set, number}. Recorded outputs of all three are the tests' fixtures.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from toolkit.errors import JobFailed, ToolkitError
from toolkit.remote.head import Completed, Head

PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
ACTIVE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
GONE = "GONE"  # Slurm no longer lists the job


@dataclass(frozen=True)
class JobState:
    """A job as Slurm sees it. `state` is Slurm's word; `exit_code` and `signal` are 0 while it runs."""

    job_id: int
    name: str
    state: str
    reason: str
    nodes: str
    exit_code: int
    signal: int

    @property
    def pending(self) -> bool:
        return self.state in PENDING

    @property
    def ended(self) -> bool:
        return self.state not in PENDING and self.state not in ACTIVE

    @property
    def ended_badly(self) -> bool:
        return self.ended and self.state not in ("COMPLETED", "CANCELLED", GONE)

    @property
    def how(self) -> str:
        """`FAILED, exit code 98 (NonZeroExitCode)`."""
        parts = [self.state]
        if self.exit_code:
            parts.append(f"exit code {self.exit_code}")
        if self.signal:
            parts.append(f"signal {self.signal}")
        reason = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return ", ".join(parts) + reason


def parse_states(text: str) -> dict[int, JobState]:
    """`squeue --json` of Slurm 22.05 and later, by job id; raises ToolkitError for anything else."""
    try:
        answer = json.loads(text)
        # 22.05 exits 0 with an empty list when its controller does not answer.
        if answer.get("errors"):
            told = "; ".join(str(each.get("error") or each) for each in answer["errors"])
            raise ToolkitError(
                f"squeue could not ask Slurm's controller: {told}.",
                next_step="is slurmctld up? `scontrol ping` on the head node; jobs go on without it",
            )
        jobs = answer["jobs"]
        return {state.job_id: state for state in map(_job_state, jobs)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolkitError(
            f"squeue --json gave something that is not Slurm's job list: {text[:200]!r}.",
            next_step="run `squeue --json` on the head node; Slurm 22.05 or later is needed",
        ) from error


def _job_state(job: Mapping[str, Any]) -> JobState:
    states = job["job_state"]
    exit_code = job["exit_code"]
    if isinstance(exit_code, dict):
        code, signal = _number(exit_code["return_code"]), _number(exit_code["signal"]["id"])
    else:
        code, signal = exit_code >> 8, exit_code & 0x7F
    return JobState(
        job_id=job["job_id"],
        name=job["name"] or "",
        # ["CANCELLED", "COMPLETING"]: not over yet.
        state=states if isinstance(states, str) else ("COMPLETING" if "COMPLETING" in states else states[0]),
        reason=job["state_reason"] or "",
        nodes=job["nodes"] or "",
        exit_code=code,
        signal=signal,
    )


def _number(value: Mapping[str, Any] | int | None) -> int:
    if isinstance(value, Mapping):
        return int(value["number"]) if value["set"] else 0
    return value or 0


def parse_job_id(text: str) -> int:
    """`sbatch --parsable`: `12` or `12;cluster`, perhaps after a site wrapper's own lines."""
    match = re.search(r"^(\d+)(?:;\S+)?$", text.strip(), re.MULTILINE)
    if not match:
        raise ToolkitError(f"sbatch gave no job id: {text.strip()[:200]!r}.")
    return int(match.group(1))


class Slurm:
    """Slurm's commands on a head node; every one is told in full when it fails."""

    def __init__(self, head: Head, *, conf: PurePosixPath | None = None) -> None:
        """`conf`: slurm.conf of a cluster that comes and goes; without it every command waits a minute."""
        self._head = head
        self._conf = conf
        self._without_controller = (
            "`toolkit cluster create -f FILE` starts the embedded cluster"
            if conf
            else "`scontrol ping` must say UP on the head node; is target.ssh.host the head node?"
        )

    def submit(self, script: PurePosixPath) -> int:
        """The id of the job that `script`, a file on the head node, became."""
        done = self._call(["sbatch", "--parsable", str(script)], f"Slurm refused {script.name}")
        return parse_job_id(done.stdout)

    def states(self, *, patience: float = 0) -> dict[int, JobState]:
        """All jobs Slurm knows, ended ones included while it keeps them, in one call; asked again for
        `patience` seconds while the controller does not answer."""
        deadline = time.monotonic() + patience
        while True:
            try:
                # Without -j: squeue fails for an id that has been purged.
                done = self._call(
                    ["squeue", "--states=all", "--json"], "can't read Slurm's jobs", repeat=True
                )
                return parse_states(done.stdout)
            except ToolkitError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def cancel(self, job_ids: Iterable[int]) -> None:
        ids = [str(job_id) for job_id in job_ids]
        if ids:
            self._call(["scancel", *ids], f"can't cancel jobs {', '.join(ids)}", repeat=True)

    def check(self) -> None:
        """Raises ToolkitError when no controller answers."""
        done = self._run(["scontrol", "ping"], repeat=True)
        if done.returncode != 0 or " UP" not in done.stdout:
            raise ToolkitError(
                f"no Slurm controller answers: {_told(done)}",
                next_step=self._without_controller,
            )

    def _call(self, argv: list[str], failure: str, *, repeat: bool = False) -> Completed:
        done = self._run(argv, repeat=repeat)
        if done.returncode != 0:
            error = JobFailed if argv[0] == "sbatch" else ToolkitError
            raise error(f"{failure}: {_told(done)}", next_step="see `sinfo` and `squeue` on the head node")
        return done

    def _run(self, argv: list[str], *, repeat: bool) -> Completed:
        if self._conf and self._head.get(self._conf) is None:
            raise ToolkitError(
                f"no cluster is up: {self._conf} is not there.", next_step=self._without_controller
            )
        return self._head.run(argv, repeat=repeat)


def _told(done: Completed) -> str:
    text = (done.stderr.strip() or done.stdout.strip())[-600:]
    return f"{text} (exit {done.returncode})"
