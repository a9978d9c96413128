"""The embedded cluster as a whole: create, delete, describe.

Its state is read from processes and files each time, so a command that was killed leaves nothing that
confuses the next one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from toolkit.embedded.engine_env import ensure_engine_env, remove_engine_env
from toolkit.embedded.lock import cluster_lock
from toolkit.embedded.model import ensure_model
from toolkit.embedded.places import places
from toolkit.embedded.plan_codec import encode_plan
from toolkit.embedded.preflight import mounts_are_shared, prepare_machine
from toolkit.embedded.privilege import require_root, run_as_root
from toolkit.embedded.slurm_client import NodeStatus, SlurmClient
from toolkit.embedded.state import ABSENT, UP, ClusterState, machine_facts, read_state
from toolkit.errors import ToolkitError
from toolkit.plan.embedded import EmbeddedPlan

Progress = Callable[[str], None]

READY_SECONDS = 30.0
_ROOT_FOLDERS = ("models", "log")


def create(
    plan: EmbeddedPlan, progress: Progress, *, force: bool = False, engine: bool = True
) -> ClusterState:
    """Brings the cluster up as planned and returns once every node takes jobs.

    A healthy cluster of the same plan is left as it is. One that lacks slurmctld only gets it back, and its
    jobs go on. Another plan's, or a half-dead one, is stopped and started again, which raises ToolkitError
    while it has jobs unless `force`. `engine=False` leaves out the engine environment and the model.
    """
    if prepare_machine(plan):
        progress("installed Slurm")
    with cluster_lock(plan.root):
        state = read_state(plan)
        resume = state.resumable and not force
        if state.state != UP and state.jobs and not force and not resume:
            raise _would_end_jobs(state)
        if engine:
            ensure_engine_env(plan.engine_env, plan.root / "log" / "engine-env.log", progress)
            ensure_model(plan, progress)
        if state.state == UP:
            progress(f"cluster in {plan.root}: up already")
            return state
        if state.state != ABSENT:
            what = "slurmctld" if resume else "it"
            progress(f"cluster in {plan.root}: {'; '.join(state.problems) or state.state}; restarting {what}")
        if resume:
            run_as_root("resume", {"plan": encode_plan(plan)})
        else:
            _start_anew(plan)
        _wait_until_idle(plan)
        progress(f"cluster in {plan.root}: {len(plan.nodes)} nodes are up")
        if not mounts_are_shared():
            progress("mounts of this machine are private: nodes see what is mounted now, but nothing later")
        return read_state(plan)


def _start_anew(plan: EmbeddedPlan) -> None:
    # Also where nothing runs: control groups or folders of a killed command may be left.
    run_as_root("stop", {"plan": encode_plan(plan)})
    run_as_root("start", {"plan": encode_plan(plan), "facts": asdict(machine_facts())})


def delete(plan: EmbeddedPlan, progress: Progress, *, purge: bool = False) -> None:
    """Ends jobs and daemons and removes all traces but models, logs and the engine environment.

    `purge` removes these too, the engine environment only if the toolkit made it. Nothing there is no error.
    """
    state = read_state(plan)
    where = places(plan)
    traces = any(folder.exists() for folder in (plan.root, where.run, where.spool))
    if state.state == ABSENT and not traces and not purge:
        progress(f"cluster in {plan.root}: not there")
        return
    require_root()
    with cluster_lock(plan.root):
        for job in state.jobs:
            progress(f"ending job {job.job_id} ({job.name})")
        run_as_root("stop", {"plan": encode_plan(plan)})
        progress(f"cluster in {plan.root}: {'was not up' if state.state == ABSENT else 'stopped'}")
        if purge:
            _purge(plan, progress)


def describe(plan: EmbeddedPlan) -> ClusterState:
    """The cluster's state against `plan`; changes nothing and needs no root."""
    return read_state(plan)


def slurm_environment(plan: EmbeddedPlan) -> dict[str, str]:
    """What Slurm's programs need in their environment to talk to this cluster."""
    return {"SLURM_CONF": str(plan.slurm_conf)}


def _would_end_jobs(state: ClusterState) -> ToolkitError:
    jobs = ", ".join(f"{job.job_id} ({job.name})" for job in state.jobs)
    return ToolkitError(
        f"the cluster in {state.root} must be restarted ({'; '.join(state.problems)}), "
        f"which would end its jobs: {jobs}",
        next_step="let them end, or end them with `toolkit job cancel` while slurmctld answers, or run "
        "`toolkit cluster create --force`",
    )


def _purge(plan: EmbeddedPlan, progress: Progress) -> None:
    for name in _ROOT_FOLDERS:
        with suppress(FileNotFoundError):
            shutil.rmtree(plan.root / name)
    if remove_engine_env(plan.engine_env):
        progress(f"removed {plan.engine_env}, models and logs")
    elif plan.engine_env.exists():
        progress(f"removed models and logs; {plan.engine_env} was not made by the toolkit and stays")


def _wait_until_idle(plan: EmbeddedPlan) -> None:
    client, deadline = SlurmClient(plan.slurm_conf), time.monotonic() + READY_SECONDS
    nodes: dict[str, NodeStatus] = {}
    complaint = ""
    while time.monotonic() < deadline:
        try:
            nodes, complaint = client.nodes(), ""
        except ToolkitError as error:
            complaint = error.what
        if nodes and all(nodes.get(node.name, NodeStatus("absent", "")).fit for node in plan.nodes):
            return
        time.sleep(0.05)
    told = [f"{name}: {status.state} {status.reason}".rstrip() for name, status in nodes.items()]
    raise ToolkitError(
        f"the nodes of the cluster in {plan.root} are not idle after {READY_SECONDS:g} s: "
        f"{complaint or ', '.join(told)}\n{_log_tails(plan)}",
        next_step=f"read the logs in {plan.root / 'log'}; `toolkit cluster delete` cleans up",
    )


def _log_tails(plan: EmbeddedPlan, lines: int = 4) -> str:
    tails = []
    for path in sorted((plan.root / "log").glob("slurm*.log")):
        said = path.read_text(errors="replace").splitlines()[-lines:]
        tails.append("\n".join([f"{path.name}:", *(f"  {line}" for line in said)]))
    return "\n".join(tails)
