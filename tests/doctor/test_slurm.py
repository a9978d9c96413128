"""toolkit doctor against a real Slurm: its nodes probed as Slurm steps, and a node whose slurmd is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolkit.embedded import cluster
from toolkit.embedded.processes import find_daemons
from toolkit.plan.embedded import EmbeddedPlan, plan_embedded
from toolkit.settings.load import load

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

DEPLOYMENT = Path(__file__).parents[2] / "deployments" / "embedded.yaml"
SETTINGS = ("target.network=10.75.0.0/24", "target.slurm_port=16757", "target.engine_env=engine")
Doctor = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("doctor")


@pytest.fixture(scope="module")
def plan(folder: Path) -> Iterator[EmbeddedPlan]:
    made = plan_embedded(load(DEPLOYMENT, SETTINGS).deployment, folder, os.cpu_count() or 1)
    cluster.create(made, print, engine=False)
    yield made
    cluster.delete(made, print)


@pytest.fixture
def doctor(plan: EmbeddedPlan, folder: Path) -> Doctor:
    assert plan.nodes

    def run(*args: str) -> tuple[int, list[dict[str, Any]]]:
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        done = subprocess.run(
            [sys.executable, "-m", "toolkit", "doctor", *args, "-f", str(DEPLOYMENT), *sets, "-o", "json"],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)["findings"]

    return run


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.5)


def test_a_healthy_cluster(doctor: Doctor) -> None:
    status, findings = doctor("cluster")
    assert status == 0, findings
    assert {row["check"]: row["severity"] for row in findings} == {
        "slurm.head_node": "ok",
        "slurm.controller": "ok",
        "slurm.nodes": "ok",
        "slurm.partitions": "ok",
        "slurm.gpus": "ok",
        "slurm.enough_nodes": "ok",
    }


def test_every_node_is_probed_through_slurm(doctor: Doctor) -> None:
    status, findings = doctor("node")
    assert status == 0, findings
    assert {row["where"] for row in findings} == {"prefill-1", "decode-1", "router-1"}
    of_prefill = {row["check"]: row["severity"] for row in findings if row["where"] == "prefill-1"}
    assert of_prefill.keys() == {
        *("system.time", "system.open_files", "system.shared_folders", "system.ports"),
        "system.shared_memory",
    }
    assert of_prefill["system.shared_folders"] == "ok"
    assert of_prefill["system.ports"] == "ok"


def test_a_port_taken_by_somebody_else(doctor: Doctor, plan: EmbeddedPlan, folder: Path) -> None:
    """The probe runs beside the job on the node it was asked for, in that node's network."""
    listening = folder / "listening"
    program = folder / "squatter.py"
    program.write_text(
        "import socket, pathlib, time\ns = socket.create_server(('0.0.0.0', 8200))\n"
        f"pathlib.Path({str(listening)!r}).touch()\ntime.sleep(300)\n"
    )
    environ = {**os.environ, **cluster.slurm_environment(plan)}
    argv = ["sbatch", "--parsable", "--partition=gpu", "--nodelist=decode-1", "--output=/dev/null"]
    argv += ["--oversubscribe", "--ntasks=1", f"--wrap=exec {sys.executable} {program}"]
    job = subprocess.run(argv, capture_output=True, text=True, env=environ, check=True).stdout.strip()
    try:
        until(listening.exists, 20)
        status, findings = doctor("node", "--node", "decode-1", "--node", "prefill-1")
    finally:
        subprocess.run(["scancel", job], env=environ, check=True)
    wrong = [(row["where"], row["check"], row["symptom"]) for row in findings if row["severity"] == "error"]
    assert wrong == [
        ("decode-1", "system.ports", "port 8200 is in use, and no job of this deployment runs here")
    ]
    assert status == 1


def test_a_node_that_a_job_of_ours_holds(doctor: Doctor, plan: EmbeddedPlan, folder: Path) -> None:
    """The whole node is taken, so the probe runs inside the job; what the job listens on is no fault."""
    listening = folder / "ours"
    program = folder / "engine.py"
    program.write_text(
        "import socket, pathlib, time\ns = socket.create_server(('0.0.0.0', 8100))\n"
        f"pathlib.Path({str(listening)!r}).touch()\ntime.sleep(300)\n"
    )
    environ = {**os.environ, **cluster.slurm_environment(plan)}
    argv = ["sbatch", "--parsable", "--partition=gpu", "--nodelist=prefill-1", "--output=/dev/null"]
    argv += [
        "--exclusive",
        "--gres=gpu:8",
        "--job-name=night.prefill-1",
        f"--wrap=exec {sys.executable} {program}",
    ]
    job = subprocess.run(argv, capture_output=True, text=True, env=environ, check=True).stdout.strip()
    try:
        until(listening.exists, 20)
        status, findings = doctor("node", "--node", "prefill-1")
    finally:
        subprocess.run(["scancel", job], env=environ, check=True)
    assert status == 0, findings
    ports = [row["symptom"] for row in findings if row["check"] == "system.ports"]
    assert "port 8100 is held while night.prefill-1 runs here" in ports


@pytest.mark.slow
def test_a_node_that_a_foreign_job_holds_is_unknown(doctor: Doctor, plan: EmbeddedPlan) -> None:
    environ = {**os.environ, **cluster.slurm_environment(plan)}
    argv = ["sbatch", "--parsable", "--partition=gpu", "--nodelist=decode-1", "--output=/dev/null"]
    argv += ["--exclusive", "--gres=gpu:8", "--wrap=exec sleep 300"]
    job = subprocess.run(argv, capture_output=True, text=True, env=environ, check=True).stdout.strip()
    listed = ["squeue", "-h", "-j", job, "-o", "%T"]
    until(lambda: subprocess.check_output(listed, text=True, env=environ).strip() == "RUNNING", 20)
    try:
        status, findings = doctor("node", "--node", "decode-1")
    finally:
        subprocess.run(["scancel", job], env=environ, check=True)
    assert [(row["check"], row["severity"]) for row in findings] == [("system.reached", "unknown")]
    assert "the probe of decode-1 did not run" in findings[0]["symptom"]
    assert status == 0


def test_a_node_that_slurm_does_not_know(plan: EmbeddedPlan, folder: Path) -> None:
    assert plan.nodes
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    argv = [sys.executable, "-m", "toolkit", "doctor", "node", "-f", str(DEPLOYMENT), *sets]
    done = subprocess.run([*argv, "--node", "gpu-9"], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 2
    assert "Slurm knows no node gpu-9" in done.stderr
    assert "prefill-1" in done.stderr


def test_a_node_taken_out_of_service(doctor: Doctor, plan: EmbeddedPlan) -> None:
    environ = {**os.environ, **cluster.slurm_environment(plan)}
    update = ["scontrol", "update", "nodename=prefill-1"]
    subprocess.run([*update, "state=drain", "reason=Kill task failed"], env=environ, check=True)
    try:
        status, findings = doctor("cluster")
        _, of_node = doctor("node", "--node", "prefill-1")
    finally:
        subprocess.run([*update, "state=resume"], env=environ, check=True)
    assert status == 1
    drained = next(row for row in findings if row["check"] == "slurm.nodes")
    assert drained["severity"] == "error"
    assert "DRAIN" in drained["symptom"]
    assert "Kill task failed" in drained["symptom"]
    assert drained["source"] == "https://github.com/aws/aws-parallelcluster/issues/1110"
    assert [row["check"] for row in of_node] == ["system.reached"]


def test_a_node_whose_slurmd_is_killed(doctor: Doctor, plan: EmbeddedPlan) -> None:
    """Last in this file: the node stays down."""
    for pid in find_daemons(plan)["prefill-1"]:
        os.kill(pid, signal.SIGKILL)

    def down() -> bool:
        _, findings = doctor("cluster")
        return any(row["check"] == "slurm.nodes" and row["severity"] == "error" for row in findings)

    until(down, 90)
    status, findings = doctor("cluster")
    assert status == 1
    lost = next(row for row in findings if row["check"] == "slurm.nodes")
    assert lost["symptom"].startswith("prefill-1: ")
    assert "slurmd" in lost["cause"]
    assert "systemctl status slurmd" in lost["next_step"]
    short = next(row for row in findings if row["check"] == "slurm.enough_nodes")
    assert short["symptom"] == "1 fit nodes in gpu, the deployment needs 2"
    status, of_node = doctor("node", "--node", "prefill-1")
    assert status == 1
    assert [(row["check"], row["severity"]) for row in of_node] == [("system.reached", "error")]
