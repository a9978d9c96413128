"""Staging a model: the token put where only its owner reads it, the job submitted, followed to its end."""

from __future__ import annotations

import time
from pathlib import Path, PurePosixPath

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.run import PATIENCE_SECONDS, Progress, Run, open_run, submit_jobs
from toolkit.flows.target import OpenTarget
from toolkit.plan.staging import TOKEN_FILE, StagingPlan
from toolkit.render.staging import render_staging
from toolkit.settings.deployment import Deployment

POLL_SECONDS = 2


def stage(
    settings: Deployment, plan: StagingPlan, target: OpenTarget, token: str | None, tell: Progress
) -> Run:
    """Submits the job that downloads the model, or finds one that is at it already. Raises JobFailed or
    ToolkitError."""
    if running := _running(plan, target):
        tell(f"run {plan.name} stages {plan.model} already")
        return running
    if token:
        path = put_token(target, token)
        tell(f"token put into {path} on the head node, mode 0600")
    files = render_staging(plan)
    return submit_jobs(settings, plan.name, plan.folder, [plan.job.name], files, target, again=True)


def _running(plan: StagingPlan, target: OpenTarget) -> Run | None:
    if target.head.get(plan.folder.jobs) is None:
        return None
    run = open_run(target, plan.folder.root)
    return run if any(not state.ended for state in run.states().values()) else None


def put_token(target: OpenTarget, token: str) -> PurePosixPath:
    """It travels as a file's text, never in a command line."""
    done = target.head.run(["sh", "-c", 'printf %s "$HOME"'], repeat=True)
    home = PurePosixPath(done.stdout)
    if done.returncode != 0 or not home.is_absolute():
        raise ToolkitError(f"the head node's user has no home folder: {done.stdout + done.stderr!r}.")
    target.head.put(home / TOKEN_FILE, token.strip() + "\n", mode=0o600)
    return home / TOKEN_FILE


def read_token(file: Path) -> str:
    """From this machine; raises SettingsError for a file that is not there, empty, or open to others."""
    try:
        if file.stat().st_mode & 0o077:
            raise SettingsError(f"others can read {file}.", next_step=f"chmod 600 {file}")
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"can't read the token in {file}: {error}.") from error
    if not token:
        raise SettingsError(f"{file} is empty.", next_step="write the Hugging Face token into it")
    return token


def wait(run: Run, tell: Progress) -> str:
    """The job's last word, once it has ended well; a line of its log whenever there is a new one. Raises
    JobFailed with the log's telling lines."""
    last = ""
    while True:
        [(job, state)] = run.states(patience=PATIENCE_SECONDS).items()
        # The log also holds what a former staging said.
        line = f"{job}: {state.how}" if state.pending else run.end_of_log(job, 1)
        if line != last:
            tell(f"  {line}")
            last = line
        if state.ended:
            if state.state != "COMPLETED":
                raise run.failure(job, state)
            return last
        time.sleep(POLL_SECONDS)
