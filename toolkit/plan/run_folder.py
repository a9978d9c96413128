"""The folder of a run and the name of every file in it. Pure: nothing here touches a disk.

A sweep's folder holds two run folders, `off/` and `on/`, and the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class RunFolder:
    root: PurePosixPath

    @property
    def settings(self) -> PurePosixPath:
        return self.root / "settings.json"

    @property
    def jobs(self) -> PurePosixPath:
        """The RunRecord: Slurm's job names and ids."""
        return self.root / "jobs.json"

    @property
    def lock(self) -> PurePosixPath:
        """Held while jobs are submitted: two toolkits must not fill one folder."""
        return self.root / ".lock"

    def script(self, job: str) -> PurePosixPath:
        return self.root / "scripts" / f"{job}.sbatch"

    def log(self, job: str) -> PurePosixPath:
        return self.root / "logs" / f"{job}.log"

    def endpoint(self, job: str) -> PurePosixPath:
        """Written by the job itself once its /health answers 200."""
        return self.root / "endpoints" / f"{job}.json"

    @property
    def access_log(self) -> PurePosixPath:
        return self.log("access")

    @property
    def conversations(self) -> PurePosixPath:
        """The router's map of conversations, where it is kept."""
        return self.root / "conversations.sqlite"

    @property
    def schedule(self) -> PurePosixPath:
        return self.root / "sweep" / "schedule.json"

    @property
    def rows(self) -> PurePosixPath:
        return self.root / "sweep" / "rows.jsonl"


@dataclass(frozen=True)
class SweepFolder:
    root: PurePosixPath

    @property
    def settings(self) -> PurePosixPath:
        return self.root / "settings.json"

    @property
    def lock(self) -> PurePosixPath:
        """Held while a toolkit drives the sweep."""
        return self.root / ".lock"

    @property
    def software(self) -> PurePosixPath:
        """Versions of what ran, by name."""
        return self.root / "software.json"

    def leg(self, leg: str) -> RunFolder:
        return RunFolder(self.root / leg)

    @property
    def results(self) -> PurePosixPath:
        return self.root / "results.json"
