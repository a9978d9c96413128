"""A run against a Slurm in memory: submitted, followed, failed, cancelled, found again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from toolkit.errors import JobFailed, SettingsError, ToolkitError
from toolkit.flows.run import Run, list_runs, open_run, submit
from toolkit.flows.target import OpenTarget
from toolkit.plan.run import RunPlan, places_of, plan_run
from toolkit.remote.slurm import GONE, Slurm
from toolkit.render.jobs import render_run
from toolkit.settings.deployment import Deployment
from toolkit.testing.fake_head import FakeHead

RUNS = PurePosixPath("/runs")


@pytest.fixture
def settings(deployment: Callable[..., Deployment]) -> Deployment:
    return deployment("embedded")


@pytest.fixture
def head() -> FakeHead:
    return FakeHead()


@pytest.fixture
def target(settings: Deployment, head: FakeHead) -> OpenTarget:
    places = places_of(settings, Path("/pd"), Path("/pd/.venv/bin/python"))
    return OpenTarget(head, Slurm(head), places, RUNS)


@pytest.fixture
def plan(settings: Deployment, target: OpenTarget) -> RunPlan:
    return plan_run(settings, "r", RUNS, target.places)


def publish(head: FakeHead, run: Run, *jobs: str) -> None:
    for job in jobs:
        head.put(run.folder.endpoint(job), json.dumps({"name": job, "url": f"http://{job}:1"}))


def states(head: FakeHead) -> dict[str, str]:
    return {job.short_name: job.state for job in head.jobs}


def test_submit_sends_what_render_gives(
    settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    run = submit(settings, plan, target)
    assert [job.name for job in head.jobs] == ["r.prefill-1", "r.decode-1", "r.router"]
    assert {job.script: head.files[job.script] for job in head.jobs} == render_run(plan)
    assert run.folder.log("prefill-1").parent in {path.parent for path in head.files}, "Slurm makes no folder"
    assert Deployment.model_validate_json(head.files[run.folder.settings]) == settings


def test_ready_when_the_router_has_published(
    settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    run = submit(settings, plan, target)
    told: list[str] = []

    def go_on(head: FakeHead) -> None:
        for job in head.jobs:
            job.state = "RUNNING"
        if len(told) > 2:
            publish(head, run, "prefill-1", "decode-1", "router")

    head.on_query = go_on
    assert run.wait_until_ready(told.append) == "http://router:1"
    assert "  prefill-1: RUNNING node-1" in told


@pytest.mark.parametrize("job", ["prefill-1", "decode-1", "router"])
def test_a_job_that_dies_at_start_is_told_with_its_log_and_nothing_is_left(
    job: str, settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    run = submit(settings, plan, target)
    noise = "".join(f"line {i}\n" for i in range(99))
    head.put(run.folder.log(job), f"{noise}ValueError: no such model\n{noise}last words\n")

    def die(head: FakeHead) -> None:
        head.job(job).state, head.job(job).exit_code = "FAILED", 1

    head.on_query = die
    with pytest.raises(JobFailed) as caught:
        run.wait_until_ready(lambda _: None)
    text = str(caught.value)
    assert f"job {job} of run r ended: FAILED, exit code 1 (NonZeroExitCode) on node-1" in text
    assert "  | ValueError: no such model\n  | ...\n  | line 90\n" in text
    assert "  | last words\n" in text
    assert "line 50\n" not in text
    assert caught.value.exit_code == 3
    assert set(states(head).values()) == {"FAILED", "CANCELLED"}


def test_a_failed_job_is_named_before_one_that_was_cancelled_beside_it(
    settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    run = submit(settings, plan, target)
    head.job("prefill-1").state = "CANCELLED"
    head.job("decode-1").state = "TIMEOUT"
    with pytest.raises(JobFailed, match="job decode-1 .*TIMEOUT"):
        run.wait_until_ready(lambda _: None)


@pytest.mark.parametrize("job", ["prefill-1", "decode-1", "router"])
def test_a_refused_job_takes_those_before_it_along(
    job: str, settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    head.refuse = frozenset({job})
    with pytest.raises(JobFailed, match="Invalid partition"):
        submit(settings, plan, target)
    assert set(states(head).values()) <= {"CANCELLED"}


def test_a_full_disk_stops_before_anything_is_submitted(
    settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    head.full = True
    with pytest.raises(ToolkitError, match="No space left on device.* Nothing was submitted; /runs/r holds"):
        submit(settings, plan, target)
    assert head.jobs == []


def test_a_run_is_never_submitted_over_another(
    settings: Deployment, plan: RunPlan, target: OpenTarget
) -> None:
    submit(settings, plan, target)
    with pytest.raises(SettingsError, match="exists already"):
        submit(settings, plan, target)


def test_a_run_is_found_again_from_its_folder(
    settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    run = submit(settings, plan, target)
    assert open_run(target, RUNS / "r") == run
    assert [found.name for found in list_runs(target, print)] == ["r"]
    with pytest.raises(SettingsError, match="no run in /runs/none"):
        open_run(target, RUNS / "none")
    run.cancel(lambda _: None)
    assert set(states(head).values()) == {"CANCELLED"}


def test_follow_prints_the_end_and_then_what_is_written(
    settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    run = submit(settings, plan, target)
    log = run.folder.log("router")
    head.put(log, "one\ntwo\nthree\n")
    written = iter(["föur\udcff\nfi", "ve\n", "last"])  # \udcff: a byte that is no UTF-8

    def write(head: FakeHead) -> None:
        text = next(written)
        head.put(log, head.files[log] + text)
        head.job("router").state = "COMPLETED" if text == "last" else "RUNNING"

    head.on_query = write
    assert list(run.follow("router", 2)) == ["two\nthree\n", "föur?\n", "five\n", "last"]


def test_a_toolkit_killed_between_sbatch_and_the_note_of_its_id_loses_no_job(
    settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    run = submit(settings, plan, target)
    kept = json.loads(head.files[run.folder.jobs])
    # As the folder is when the second sbatch has answered and nobody was there to note it.
    kept["jobs"]["decode-1"]["id"] = kept["jobs"]["router"]["id"] = None
    head.put(run.folder.jobs, json.dumps(kept))
    head.jobs.remove(head.job("router"))
    found = open_run(target, RUNS / "r")
    states = found.states()
    assert (states["decode-1"].job_id, states["decode-1"].state) == (2, "PENDING")
    assert (states["router"].state, states["router"].reason) == (GONE, "it was not submitted")
    found.cancel(lambda _: None)
    assert {job.state for job in head.jobs} == {"CANCELLED"}


def test_two_toolkits_do_not_submit_into_one_folder(
    settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    with head.lock(plan.folder.lock), pytest.raises(ToolkitError, match="another toolkit works in /runs/r"):
        submit(settings, plan, target)
    assert head.jobs == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"submitted_at": 1, "jobs": {}}', '{"a": {}}'])
def test_a_damaged_run_is_told_and_does_not_hide_the_others(
    text: str, settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    submit(settings, plan, target)
    head.put(RUNS / "broken" / "jobs.json", text)
    head.put(RUNS / "stray", "")
    told: list[str] = []
    assert [run.name for run in list_runs(target, told.append)] == ["r"]
    assert len(told) == 1
    assert "/runs/broken/jobs.json is damaged" in told[0]


def test_an_id_that_a_new_cluster_gave_to_another_job_is_gone(
    settings: Deployment, plan: RunPlan, target: OpenTarget, head: FakeHead
) -> None:
    run = submit(settings, plan, target)
    for job in head.jobs:
        job.name, job.state = "someone-elses", "RUNNING"
    assert {state.state for state in run.states().values()} == {GONE}
    run.cancel(lambda _: None)
    assert {job.state for job in head.jobs} == {"RUNNING"}
