"""toolkit job: the jobs of a deployment, from script to log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.options import again, dry_run_option, load_settings, output_option, settings_options
from toolkit.cli.output import print_rows, progress

if TYPE_CHECKING:
    from toolkit.flows.run import Run
    from toolkit.flows.target import OpenTarget
    from toolkit.plan.run import RunPlan
    from toolkit.settings.deployment import Deployment

name_option = click.option("--name", help="Name of the run and its folder; default: deployment and time.")
run_option = click.option(
    "--run", "run_name", metavar="NAME", help="The run; default: the one submitted last."
)


@click.group()
def cli() -> None:
    """Render, submit and follow the jobs of a deployment: one per engine, and the router."""


@cli.command()
@settings_options
@name_option
def render(file: Path, assignments: tuple[str, ...], name: str | None) -> None:
    """Print every job script, as `submit` would send it.

    \b
    Example: toolkit job render -f deployments/qwen3-32b-p5en.yaml
    """
    settings = load_settings(file, assignments).deployment
    _print_scripts(_plan(settings, name)[0])


@cli.command()
@settings_options
@name_option
@dry_run_option
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the router answers.")
def submit(file: Path, assignments: tuple[str, ...], name: str | None, dry_run: bool, wait: bool) -> None:
    """Start the engines and the router; print the router's URL.

    \b
    Example: toolkit job submit -f deployments/embedded.yaml
    """
    settings = load_settings(file, assignments).deployment
    plan, target = _plan(settings, name)
    if dry_run:
        _print_scripts(plan)
        return
    from toolkit.flows.run import submit as submit_run

    tell = progress()
    run = submit_run(settings, plan, target)
    tell(f"run {run.name}: " + ", ".join(f"{job} is job {it.id}" for job, it in run.record.jobs.items()))
    if not wait:
        click.echo(run.name)
        return
    same = again(file, assignments)
    try:
        url = run.wait_until_ready(tell)
    except KeyboardInterrupt:
        tell(f"the jobs go on; `toolkit job watch {same}` follows, `toolkit job cancel {same}` ends them")
        raise
    tell(f"model {settings.model.served_name!r} is served; `toolkit job cancel {same}` ends it")
    if target.remote:
        tell(f"that is the cluster's address; `toolkit job tunnel {same}` reaches it from here")
    click.echo(f"{url}/v1")


@cli.command("list")
@settings_options
@output_option("table", "json", "yaml")
@click.option("--all", "everything", is_flag=True, help="Also runs whose jobs have all ended.")
def list_(file: Path, assignments: tuple[str, ...], output: str, everything: bool) -> None:
    """The runs of a deployment's target and the state of their jobs."""
    from toolkit.flows.run import list_runs

    target = _target(file, assignments)
    known = target.slurm.states()
    rows = []
    for run in list_runs(target, progress()):
        states = run.states_among(known)
        if everything or any(not state.ended for state in states.values()):
            rows += [
                (run.name, job, state.job_id, state.how, state.nodes, run.address(job))
                for job, state in states.items()
            ]
    print_rows(("run", "job", "id", "state", "node", "address"), rows, output)


@cli.command()
@settings_options
@run_option
@click.argument("job", required=False)
@click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Lines from the end of each log.",
)
@click.option("--follow", is_flag=True, help="Go on printing what JOB writes, until it ends.")
def logs(
    file: Path,
    assignments: tuple[str, ...],
    run_name: str | None,
    job: str | None,
    lines: int,
    follow: bool,
) -> None:
    """Print the end of a run's logs.

    Of all of them, or of one JOB's: prefill-1, decode-1, router, or access, the router's line per request.

    \b
    Example: toolkit job logs -f deployments/embedded.yaml prefill-1 --follow
    """
    run = _run(_target(file, assignments), run_name)
    if job is not None and job not in (*run.jobs, "access"):
        known = ", ".join((*run.jobs, "access"))
        raise click.BadParameter(f"run {run.name} has no job {job!r}; it has {known}")
    if follow and job in (None, "access"):
        raise click.UsageError("--follow needs a JOB, such as prefill-1")
    if follow and job:
        for text in run.follow(job, lines):
            click.echo(text, nl=False)
        return
    for name in [job] if job else run.jobs:
        if not job:
            click.echo(f"==> {name} <==")
        click.echo(run.end_of_log(name, lines))


@cli.command()
@settings_options
@run_option
def watch(file: Path, assignments: tuple[str, ...], run_name: str | None) -> None:
    """Follow a run until its jobs have ended.

    Exits 3 as soon as one of them ends badly, with what its log says.
    """
    from toolkit.flows.run import PATIENCE_SECONDS

    run = _run(_target(file, assignments), run_name)
    told: dict[str, str] = {}
    while True:
        states = run.states(patience=PATIENCE_SECONDS)
        for job, state in states.items():
            if told.get(job) != state.how:
                click.echo(f"{time.strftime('%H:%M:%S')} {job}: {state.how} {state.nodes}".rstrip(), err=True)
                told[job] = state.how
        running = [job for job, state in states.items() if not state.ended]
        for job, state in states.items():
            if state.ended_badly:
                raise run.failure(job, state, others_run=bool(running))
        if not running:
            return
        time.sleep(2)


@cli.command()
@settings_options
@run_option
@click.option("--all", "everything", is_flag=True, help="Every run of this target.")
def cancel(file: Path, assignments: tuple[str, ...], run_name: str | None, everything: bool) -> None:
    """End a run's jobs and wait until they are gone."""
    from toolkit.flows.run import list_runs

    target = _target(file, assignments)
    tell = progress()
    for run in list_runs(target, tell) if everything else [_run(target, run_name)]:
        run.cancel(tell)
        tell(f"run {run.name}: no job of it runs")


@cli.command()
@settings_options
@run_option
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where to; default: runs/NAME in this folder.",
)
def download(file: Path, assignments: tuple[str, ...], run_name: str | None, to: Path | None) -> None:
    """Fetch a run's folder to this machine: settings, scripts, logs, rows.

    What is here already is not fetched again.

    \b
    Example: toolkit job download -f deployments/qwen3-32b-p5en.yaml --run first
    """
    from toolkit.flows.download import download as fetch

    target = _target(file, assignments)
    run = _run(target, run_name)
    click.echo(fetch(target.head, run.folder.root, to or Path("runs") / run.name, progress()))


@cli.command()
@settings_options
@run_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of this machine; default: a free one."
)
def tunnel(file: Path, assignments: tuple[str, ...], run_name: str | None, port: int) -> None:
    """Reach a run's router from this machine: print its URL here, and hold it until Ctrl-C.

    \b
    Example: toolkit job tunnel -f deployments/qwen3-32b-p5en.yaml --port 8000
    """
    from urllib.parse import urlsplit

    from toolkit.errors import ToolkitError
    from toolkit.plan.run import ROUTER

    target = _target(file, assignments)
    run = _run(target, run_name)
    router = urlsplit(run.address(ROUTER) or "")
    if router.hostname is None or router.port is None:
        raise ToolkitError(
            f"the router of run {run.name} has not published its address.",
            next_step=f"`toolkit job watch {again(file, assignments)}` shows how far the run is",
        )
    with target.head.tunnel(router.hostname, router.port, local_port=port) as url:
        click.echo(f"{url}/v1")
        progress()(f"router {router.netloc} of run {run.name}; Ctrl-C ends it, the jobs go on")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return


@cli.command()
@settings_options
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Hugging Face token, in a file of this machine that only you read; default: HF_TOKEN or "
    "HF_TOKEN_PATH of the environment, else the one put there before, else none.",
)
@dry_run_option
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the model is there.")
def stage(
    file: Path, assignments: tuple[str, ...], token_file: Path | None, dry_run: bool, wait: bool
) -> None:
    """Download the model to HF_HOME on the shared volume, by a Slurm job.

    Files that are there are kept, and every one is checked; a model that is complete costs nothing.

    \b
    Example: toolkit job stage -f deployments/qwen3-32b-p5en.yaml
    """
    import os

    from toolkit.flows import staging
    from toolkit.flows.target import open_target
    from toolkit.plan.staging import plan_staging
    from toolkit.render.staging import render_staging

    settings = load_settings(file, assignments).deployment
    target = open_target(settings)
    plan = plan_staging(settings, target.runs, os.environ.get("HF_ENDPOINT"))
    if dry_run:
        click.echo(render_staging(plan)[plan.folder.script(plan.job.name)], nl=False)
        return
    tell = progress()
    run = staging.stage(settings, plan, target, _token(token_file), tell)
    tell(f"run {run.name}: job {run.record.jobs[plan.job.name].id} stages {plan.model}")
    if wait:
        staging.wait(run, tell)
    click.echo(run.name)


def _token(file: Path | None) -> str | None:
    import os

    from toolkit.flows.staging import read_token

    if file is None and (token := os.environ.get("HF_TOKEN")):
        return token
    path = file or os.environ.get("HF_TOKEN_PATH")
    return read_token(Path(path)) if path else None


def _plan(settings: Deployment, name: str | None) -> tuple[RunPlan, OpenTarget]:
    from toolkit.flows.target import open_target
    from toolkit.plan.run import plan_run

    target = open_target(settings)
    chosen = name or f"{settings.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return plan_run(settings, chosen, target.runs, target.places), target


def _print_scripts(plan: RunPlan) -> None:
    from toolkit.render.jobs import render_run

    for path, text in render_run(plan).items():
        click.echo(f"# ==> {path} <==")
        click.echo(text, nl=False)


def _target(file: Path, assignments: tuple[str, ...]) -> OpenTarget:
    from toolkit.flows.target import open_target

    return open_target(load_settings(file, assignments).deployment)


def _run(target: OpenTarget, name: str | None) -> Run:
    from toolkit.errors import SettingsError
    from toolkit.flows.run import list_runs, open_run

    if name:
        return open_run(target, target.runs / name)
    runs = list_runs(target, progress())
    if not runs:
        raise SettingsError(f"no run in {target.runs}.", next_step="`toolkit job submit -f FILE` makes one")
    return max(runs, key=lambda run: run.record.submitted_at)
