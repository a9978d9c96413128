"""A run, from the first script written to the last job gone. All of it is kept in the run's folder, so that
any later command, or a toolkit that was killed, finds it again."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from toolkit.errors import JobFailed, SettingsError, ToolkitError
from toolkit.flows.target import OpenTarget
from toolkit.plan.run import ROUTER, SWEEP, RunPlan
from toolkit.plan.run_folder import RunFolder
from toolkit.plan.run_record import RecordedJob, RunRecord
from toolkit.remote.slurm import GONE, JobState
from toolkit.render.jobs import render_run
from toolkit.settings.deployment import Deployment

Progress = Callable[[str], None]

POLL_SECONDS = 0.5
# TERM, KillWait and the node's epilog; a job that outlives this is reported, not waited for.
CANCEL_SECONDS = 180
# A controller that restarts is away for some seconds; its jobs go on meanwhile.
PATIENCE_SECONDS = 60
LOG_LINE_BYTES = 1000  # a generous line
LAST_LINES = 10  # of a log, in an error message
LOGS_README = "One log per job, written by Slurm; access.log is the router's.\n"


@dataclass(frozen=True)
class Run:
    target: OpenTarget
    folder: RunFolder
    record: RunRecord

    @property
    def name(self) -> str:
        return str(self.folder.root.relative_to(self.target.runs))

    @property
    def jobs(self) -> list[str]:
        return list(self.record.jobs)

    def states(self, *, patience: float = 0) -> dict[str, JobState]:
        """The run's jobs as Slurm sees them; `patience`: see Slurm.states."""
        return self.states_among(self.target.slurm.states(patience=patience))

    def states_among(self, known: Mapping[int, JobState]) -> dict[str, JobState]:
        """The run's jobs in a list of all jobs."""
        return {job: _find(recorded, known) for job, recorded in self.record.jobs.items()}

    def address(self, job: str) -> str | None:
        """The URL a job has published, or None so far."""
        return self.published(job).get("url")

    def published(self, job: str) -> dict[str, str]:
        """What a job says of itself once it answers: name, url, node, job_id, hardware. Empty so far."""
        text = self.target.head.get(self.folder.endpoint(job))
        published: dict[str, str] = json.loads(text) if text else {}
        return published

    def wait_until_ready(self, progress: Progress, *, seconds: float = 3600) -> str:
        """The router's URL, once every server answers. A job that ends before raises JobFailed with its
        log's tail, and the other jobs of the run are cancelled."""
        deadline = time.monotonic() + seconds
        told: dict[str, str] = {}
        while True:
            states = self.states(patience=PATIENCE_SECONDS)
            self._fail_if_any_ended(states, progress)
            urls = {job: self.address(job) for job, state in states.items() if not state.pending}
            for job, state in states.items():
                slurm_says = f"{state.state}{_reason(state)} {state.nodes}".rstrip()
                now = f"ready at {url}" if (url := urls.get(job)) else slurm_says
                if told.get(job) != now and job != SWEEP:
                    progress(f"  {job}: {now}")
                    told[job] = now
            if url := urls.get(ROUTER):
                return url
            if time.monotonic() > deadline:
                self.cancel(progress)
                raise JobFailed(
                    f"run {self.name} was not ready after {seconds:g} s and was cancelled.",
                    next_step=f"read its logs in {self.folder.root / 'logs'}",
                )
            time.sleep(POLL_SECONDS)

    def _fail_if_any_ended(self, states: Mapping[str, JobState], progress: Progress) -> None:
        ended = {job: state for job, state in states.items() if state.ended and job != SWEEP}
        if not ended:
            return
        # A job that failed by itself tells more than one that was cancelled beside it.
        job = min(ended, key=lambda name: not ended[name].ended_badly)
        self.cancel(progress)
        raise self.failure(job, ended[job])

    def failure(self, job: str, state: JobState, *, others_run: bool = False) -> JobFailed:
        log = self.folder.log(job)
        where = f" on {state.nodes}" if state.nodes else ""
        tail = textwrap.indent(telling_lines(self.end_of_log(job, 300)), "  | ")
        return JobFailed(
            f"job {job} of run {self.name} ended: {state.how}{where}.\n"
            + (f"From {log}:\n{tail}" if tail else f"It left no log ({log})."),
            next_step="mend what the log says and submit again; "
            + (
                "the run's other jobs go on, `toolkit job cancel` ends them"
                if others_run
                else "nothing of this run is left running"
            ),
        )

    def end_of_log(self, job: str, lines: int) -> str:
        """The last lines of a job's log, or, for "access", of the router's access log."""
        text = self.target.head.get(self.folder.log(job), tail=lines * LOG_LINE_BYTES) or ""
        return _printable("\n".join(text.rstrip().splitlines()[-lines:]))

    def follow(self, job: str, lines: int) -> Iterator[str]:
        """The last `lines` lines of a job's log, then what it writes, until the job has ended."""
        path = self.folder.log(job)
        start = max(0, (self.target.head.size(path) or 0) - lines * LOG_LINE_BYTES)
        log = self.target.head.get(path, start=start) or ""
        yield _printable("".join(log.splitlines(keepends=True)[-lines:]))
        read = start + _size(log)
        while True:
            ended = self.states(patience=PATIENCE_SECONDS)[job].ended
            new = self.target.head.get(path, start=read) or ""
            # A line that is being written waits, so that no character is cut in two.
            whole = new if ended else new[: new.rfind("\n") + 1]
            if whole:
                yield _printable(whole)
                read += _size(whole)
            if ended:
                return
            time.sleep(POLL_SECONDS)

    def cancel(self, progress: Progress) -> None:
        """Cancels what still runs and waits until Slurm says that it is gone."""
        states = self.states(patience=PATIENCE_SECONDS)
        alive = [state.job_id for state in states.values() if not state.ended]
        if not alive:
            return
        progress(f"cancelling {len(alive)} jobs of run {self.name}")
        self.target.slurm.cancel(alive)
        deadline = time.monotonic() + CANCEL_SECONDS
        while left := [s for s in self.states(patience=PATIENCE_SECONDS).values() if not s.ended]:
            if time.monotonic() > deadline:
                raise JobFailed(
                    f"{CANCEL_SECONDS} s after scancel still run: {', '.join(s.name for s in left)}.",
                    next_step="look at the nodes: `sinfo -R`, `squeue`",
                )
            time.sleep(0.5)


def submit(
    settings: Deployment,
    plan: RunPlan,
    target: OpenTarget,
    *,
    files: Mapping[PurePosixPath, str] | None = None,
    again: bool = False,
) -> Run:
    """Writes the run's folder, with `files` besides, and submits its jobs in order. If one is refused, those
    before are cancelled. `again`: in a folder whose former jobs have ended."""
    written = {**render_run(plan), **(files or {})}
    return submit_jobs(
        settings, plan.name, plan.folder, [job.name for job in plan.jobs], written, target, again=again
    )


def submit_jobs(
    settings: Deployment,
    name: str,
    folder: RunFolder,
    jobs: Sequence[str],
    files: Mapping[PurePosixPath, str],
    target: OpenTarget,
    *,
    again: bool = False,
) -> Run:
    """`submit` for scripts that are rendered: `files` holds one for each of `jobs`, at its place."""
    target.slurm.check()
    with target.head.lock(folder.lock):
        if target.head.get(folder.jobs) is not None and not again:
            raise SettingsError(
                f"a run {folder.root} exists already.",
                next_step="give another --name, or remove that folder",
            )
        written = {
            **files,
            # Slurm opens a job's log before the job starts; without the log's folder the job fails silently.
            folder.log("README").with_suffix(".txt"): LOGS_README,
            folder.settings: settings.model_dump_json(indent=2) + "\n",
        }
        try:
            for path, text in written.items():
                target.head.put(path, text)
        except ToolkitError as error:
            raise ToolkitError(
                f"{error.what} Nothing was submitted; {folder.root} holds a part of the run's files.",
                next_step=error.next_step,
            ) from error
        return _submit_jobs(name, folder, jobs, target)


def _submit_jobs(name: str, folder: RunFolder, jobs: Sequence[str], target: OpenTarget) -> Run:
    run = Run(target, folder, RunRecord.intended(time.time(), name, jobs))
    target.head.put(folder.jobs, run.record.to_json())
    try:
        for job in jobs:
            job_id = target.slurm.submit(folder.script(job))
            run = replace(run, record=run.record.submitted(job, job_id))
            target.head.put(folder.jobs, run.record.to_json())
    except (ToolkitError, KeyboardInterrupt):
        # Also one whose id had not come back yet.
        run.cancel(lambda _: None)
        raise
    return run


def _find(recorded: RecordedJob, known: Mapping[int, JobState]) -> JobState:
    """The job with the recorded id, or without one the newest of its name. An id that a new cluster gave to
    another job counts as gone."""
    if recorded.id is None:
        named = [job_id for job_id, state in known.items() if state.name == recorded.name]
        if named:
            return known[max(named)]
        return JobState(0, recorded.name, GONE, "it was not submitted", "", 0, 0)
    state = known.get(recorded.id)
    if state and state.name == recorded.name:
        return state
    return JobState(recorded.id, recorded.name, GONE, "Slurm no longer lists it", "", 0, 0)


def open_run(target: OpenTarget, root: PurePosixPath) -> Run:
    """The run in a folder, from what it wrote there; raises SettingsError if there is none."""
    folder = RunFolder(root)
    text = target.head.get(folder.jobs)
    if text is None:
        raise SettingsError(f"no run in {root}.", next_step="`toolkit job list -f FILE` names the runs")
    return Run(target, folder, RunRecord.from_json(text, folder.jobs))


def list_runs(target: OpenTarget, tell: Progress) -> list[Run]:
    """Every run of the target's runs folder, sweeps' legs included, by name. A damaged one is told and left
    out, so that it does not hide the others."""
    roots: list[PurePosixPath] = []
    for name in target.head.names(target.runs):
        roots += [target.runs / name, *(target.runs / name / leg for leg in ("off", "on"))]
    runs = []
    for root in roots:
        if target.head.get(RunFolder(root).jobs) is not None:
            try:
                runs.append(open_run(target, root))
            except SettingsError as error:
                tell(f"left out: {error}")
    return runs


def telling_lines(log: str) -> str:
    """The last lines of a log, and before them the last that name an error: an engine that dies prints much
    after the line that says why."""
    lines = log.splitlines()
    last = lines[-LAST_LINES:]
    errors = [line for line in lines[:-LAST_LINES] if re.search(r"\b(ERROR|[A-Za-z.]*[Ee]rror:)", line)]
    return "\n".join([*errors[-LAST_LINES:], *(["..."] if errors else []), *last])


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _printable(text: str) -> str:
    """Bytes of a log that are no UTF-8 as question marks."""
    return text.encode("utf-8", "replace").decode()


def _reason(state: JobState) -> str:
    return f" ({state.reason})" if state.pending and state.reason not in ("", "None") else ""
