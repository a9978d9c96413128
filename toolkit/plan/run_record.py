"""What a run's folder keeps of its jobs: jobs.json, written before the first submission and after each.

A job without an id may have been submitted all the same: the toolkit can be killed between sbatch and the
writing of the id. Its Slurm name, which no other run has, then finds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from toolkit.errors import SettingsError


@dataclass(frozen=True)
class RecordedJob:
    name: str  # Slurm's job name
    id: int | None = None


@dataclass(frozen=True)
class RunRecord:
    """`submitted_at`: Unix seconds, of the first submission. `jobs`: by our name, such as prefill-1."""

    submitted_at: float
    jobs: dict[str, RecordedJob]

    @classmethod
    def intended(cls, now: float, run: str, jobs: Iterable[str]) -> RunRecord:
        return cls(now, {job: RecordedJob(f"{run}.{job}") for job in jobs})

    def submitted(self, job: str, job_id: int) -> RunRecord:
        return replace(self, jobs={**self.jobs, job: replace(self.jobs[job], id=job_id)})

    def to_json(self) -> str:
        jobs = {job: {"name": recorded.name, "id": recorded.id} for job, recorded in self.jobs.items()}
        return json.dumps({"submitted_at": self.submitted_at, "jobs": jobs}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, path: PurePosixPath) -> RunRecord:
        """Raises SettingsError naming `path` if it is damaged."""
        try:
            data = json.loads(text)
            jobs = {job: RecordedJob(entry["name"], entry["id"]) for job, entry in data["jobs"].items()}
            record = cls(float(data["submitted_at"]), jobs)
            sound = bool(jobs) and all(
                isinstance(job.name, str) and (job.id is None or type(job.id) is int) for job in jobs.values()
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}") from error
        if not sound:
            raise _damaged(path, "no jobs, or ids that are no numbers")
        return record


def _damaged(path: PurePosixPath, why: str) -> SettingsError:
    return SettingsError(
        f"{path} is damaged ({why}).",
        next_step="find the run's jobs with `squeue`, end them with `scancel`, and remove the run's folder",
    )
