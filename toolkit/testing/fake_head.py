"""A head node in memory that we ship for tests: files, and a Slurm whose jobs do what the test says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from toolkit.errors import ToolkitError
from toolkit.remote.head import Completed


@dataclass
class FakeJob:
    job_id: int
    name: str
    script: PurePosixPath
    state: str = "PENDING"
    exit_code: int = 0

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass
class FakeHead:
    """`on_query` runs before each squeue, so that a test can move jobs on; `refuse` holds short job names
    that sbatch rejects; `full` makes every write fail as a full disk does."""

    files: dict[PurePosixPath, str] = field(default_factory=dict)
    modes: dict[PurePosixPath, int] = field(default_factory=dict)
    jobs: list[FakeJob] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    refuse: frozenset[str] = frozenset()
    full: bool = False
    locked: set[PurePosixPath] = field(default_factory=set)
    on_query: Callable[[FakeHead], None] = lambda _: None
    answers: Mapping[str, Completed] = field(default_factory=dict)

    def job(self, short_name: str) -> FakeJob:
        """The newest job of that name."""
        return next(job for job in reversed(self.jobs) if job.short_name == short_name)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",  # noqa: ARG002
        timeout: float = 60,  # noqa: ARG002
        repeat: bool = False,  # noqa: ARG002
    ) -> Completed:
        self.commands.append(list(argv))
        if argv[0] in self.answers:
            return self.answers[argv[0]]
        match argv[0]:
            case "scontrol":
                return Completed(0, "Slurmctld(primary) at head is UP\n", "")
            case "sbatch":
                return self._sbatch(PurePosixPath(argv[-1]))
            case "squeue":
                self.on_query(self)
                return Completed(0, json.dumps({"jobs": [_listed(job) for job in self.jobs]}), "")
            case "scancel":
                for job in self.jobs:
                    if str(job.job_id) in argv[1:]:
                        job.state = "CANCELLED"
                return Completed(0, "", "")
        return Completed(127, "", f"{argv[0]}: not found")

    def _sbatch(self, script: PurePosixPath) -> Completed:
        match = re.search(r"^#SBATCH --job-name=(\S+)$", self.files[script], re.MULTILINE)
        if match is None:
            return Completed(1, "", "sbatch: error: no job name")
        job = FakeJob(len(self.jobs) + 1, match.group(1), script)
        if job.short_name in self.refuse:
            return Completed(1, "", "sbatch: error: Batch job submission failed: Invalid partition")
        self.jobs.append(job)
        return Completed(0, f"{job.job_id}\n", "")

    def put(self, path: PurePosixPath, text: str, *, mode: int = 0o644) -> None:
        if self.full:
            raise ToolkitError(f"can't write {path}: No space left on device.")
        self.files[path] = text
        self.modes[path] = mode

    def get(
        self, path: PurePosixPath, *, start: int = 0, tail: int | None = None, limit: int | None = None
    ) -> str | None:
        text = self.files.get(path)
        if text is None:
            return None
        content = text.encode(errors="surrogateescape")[start if tail is None else -tail :]
        return content[:limit].decode(errors="surrogateescape")

    def size(self, path: PurePosixPath) -> int | None:
        text = self.files.get(path)
        return None if text is None else len(text.encode(errors="surrogateescape"))

    @contextmanager
    def lock(self, path: PurePosixPath) -> Iterator[None]:
        if path in self.locked:
            raise ToolkitError(f"another toolkit works in {path.parent} just now.")
        self.locked.add(path)
        try:
            yield
        finally:
            self.locked.remove(path)

    @contextmanager
    def tunnel(self, host: str, port: int, *, local_port: int = 0) -> Iterator[str]:
        yield f"http://127.0.0.1:{local_port or 1}/{host}:{port}"

    def names(self, folder: PurePosixPath) -> list[str]:
        return sorted({path.relative_to(folder).parts[0] for path in self.files if folder in path.parents})


def _listed(job: FakeJob) -> dict[str, object]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "job_state": job.state,
        "state_reason": "NonZeroExitCode" if job.exit_code else "None",
        "nodes": "" if job.state == "PENDING" else "node-1",
        "exit_code": job.exit_code << 8,
    }
