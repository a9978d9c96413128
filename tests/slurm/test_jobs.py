"""Jobs on a real Slurm. The engine is a small server in vLLM's place, so that only Slurm, scripts, router and
commands are under test; tests/engine runs the real one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from toolkit.embedded import cluster
from toolkit.plan.embedded import EmbeddedPlan, plan_embedded
from toolkit.settings.load import arguments, load

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

DEPLOYMENT = Path(__file__).parents[2] / "deployments" / "embedded.yaml"
Toolkit = Callable[..., subprocess.CompletedProcess[str]]

# Answers /health, notes its environment, folder and pid, and how it was stopped.
ENGINE = """#!{python}
import json, os, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
port = int(sys.argv[sys.argv.index("--port") + 1])
notes = os.path.join(os.path.dirname(sys.argv[0]), f"notes-{{port}}.json")
def note(**more):
    with open(notes, "w") as file:
        json.dump({{"pid": os.getpid(), "environ": dict(os.environ), "cwd": os.getcwd(), **more}}, file)
def stop(*_):
    note(stopped="TERM")
    print("engine: stopped cleanly", flush=True)
    os._exit(0)
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
signal.signal(signal.SIGTERM, stop)
note()
print("engine: up", flush=True)
ThreadingHTTPServer(("0.0.0.0", port), Health).serve_forever()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def settings() -> list[str]:
    return ["target.network=10.78.0.0/24", "target.slurm_port=16917", "target.engine_env=engine"]


@pytest.fixture(scope="module")
def plan(folder: Path, settings: list[str]) -> Iterator[EmbeddedPlan]:
    engine = folder / "engine" / "bin" / "vllm"
    engine.parent.mkdir(parents=True)
    engine.write_text(ENGINE.format(python=sys.executable))
    engine.chmod(0o755)
    made = plan_embedded(load(DEPLOYMENT, settings).deployment, folder, os.cpu_count() or 1)
    cluster.create(made, print, engine=False)
    yield made
    cluster.delete(made, print)


@pytest.fixture
def toolkit(plan: EmbeddedPlan, folder: Path, settings: list[str]) -> Iterator[Toolkit]:
    def run(*args: str, more: tuple[str, ...] = (), **environ: str) -> subprocess.CompletedProcess[str]:
        sets = [word for setting in (*settings, *more) for word in ("--set", setting)]
        return subprocess.run(
            [sys.executable, "-m", "toolkit", *args, "-f", str(DEPLOYMENT), *sets],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, **environ},
            check=False,
        )

    yield run
    run("job", "cancel", "--all")
    assert [job for job in cluster.describe(plan).jobs if job.state != "CG"] == []


def notes(folder: Path, port: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "engine" / "bin" / f"notes-{port}.json").read_text())
    return found


def test_submit_serves_and_cancel_stops_cleanly(toolkit: Toolkit, folder: Path) -> None:
    submitted = toolkit("job", "submit", "--name", "clean")
    assert submitted.returncode == 0, submitted.stderr
    assert submitted.stdout == "http://10.78.0.13:8000/v1\n"
    run = folder / "runs" / "clean"
    published = json.loads((run / "endpoints" / "prefill-1.json").read_text())
    assert (published["url"], published["node"]) == ("http://10.78.0.11:8100", "prefill-1")
    assert re.fullmatch(r"1 x .+ core", published["hardware"])
    assert notes(folder, 8100)["cwd"] == str(run)
    temporary = Path(notes(folder, 8100)["environ"]["TMPDIR"])
    assert temporary.is_dir()
    listed = [line.split("\t") for line in toolkit("job", "list").stdout.splitlines()[1:]]
    assert [(row[1], row[3], row[4]) for row in listed] == [
        ("prefill-1", "RUNNING", "prefill-1"),
        ("decode-1", "RUNNING", "decode-1"),
        ("router", "RUNNING", "router-1"),
    ]
    assert toolkit("job", "cancel", "--run", "clean").returncode == 0
    for port in (8100, 8200):
        assert notes(folder, port)["stopped"] == "TERM"
        assert not Path(f"/proc/{notes(folder, port)['pid']}").exists()
    assert list((run / "endpoints").iterdir()) == []
    assert not temporary.exists(), "what an engine leaves in its temporary folder goes with the job"
    assert "stopped on request" in (run / "logs" / "prefill-1.log").read_text()
    again = toolkit("job", "cancel", "--run", "clean")
    assert (again.returncode, again.stderr) == (0, "run clean: no job of it runs\n")
    assert toolkit("job", "watch", "--run", "clean").returncode == 0


def test_a_job_sees_its_script_and_nothing_of_the_users_shell(toolkit: Toolkit, folder: Path) -> None:
    more = ("legs.prefill.env.GREETING=a b,$c",)
    secrets = {"HF_TOKEN": "hf_verysecret", "OPENAI_API_KEY": "sk-verysecret", "VLLM_PLUGINS": "none"}
    submitted = toolkit("job", "submit", "--name", "environment", more=more, **secrets)
    assert submitted.returncode == 0, submitted.stderr
    environ = notes(folder, 8100)["environ"]
    assert isinstance(environ, dict)
    assert environ["GREETING"] == "a b,$c"
    assert environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.78.0.11"
    assert not set(secrets) & set(environ)
    for path in (folder / "runs" / "environment").rglob("*"):
        assert path.is_dir() or "verysecret" not in path.read_text()


def test_a_disk_that_fills_up_before_the_address_is_published_ends_the_job(
    toolkit: Toolkit, plan: EmbeddedPlan, folder: Path
) -> None:
    """The folder of addresses is made unwritable in the one way that stops root as well: it is a file."""
    started = toolkit("job", "submit", "--no-wait", "--name", "unpublished")
    assert started.returncode == 0, started.stderr
    (folder / "runs" / "unpublished" / "endpoints").write_text("")
    watched = toolkit("job", "watch", "--run", "unpublished")
    assert watched.returncode == 3
    assert "exit code 96" in watched.stderr
    assert "is the disk full?" in watched.stderr
    assert plan.root.exists()


def test_two_submissions_of_one_name_at_once(toolkit: Toolkit, plan: EmbeddedPlan) -> None:
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: toolkit("job", "submit", "--no-wait", "--name", "twice"), range(2)))
    assert sorted(each.returncode for each in done) in ([0, 1], [0, 2])
    assert len(cluster.describe(plan).jobs) == 3
    assert toolkit("job", "cancel", "--run", "twice").returncode == 0


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_sweep_that_is_told_to_stop_ends_its_jobs(
    plan: EmbeddedPlan, folder: Path, settings: list[str], stop: signal.Signals
) -> None:
    name = f"stopped-{stop.name}"
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "toolkit", "sweep", "run", "--name", name, "-f", str(DEPLOYMENT), *sets]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as sweep:
        _until(lambda: any(job.state == "R" for job in cluster.describe(plan).jobs))
        sweep.send_signal(stop)
        _, said = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert f"toolkit sweep resume {arguments(DEPLOYMENT, settings)} --name {name}" in said
    assert [job for job in cluster.describe(plan).jobs if job.state != "CG"] == []


def test_a_full_disk_is_told_and_nothing_is_submitted(
    toolkit: Toolkit, plan: EmbeddedPlan, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)], check=True)
    try:
        done = toolkit("job", "submit", "--name", "full", more=(f"target.runs_dir={tmp_path}",))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "target.runs_dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert cluster.describe(plan).jobs == ()


@pytest.mark.parametrize(("job", "port"), [("prefill-1", 8100), ("decode-1", 8200)])
def test_an_engine_killed_while_serving_is_told_by_watch(
    toolkit: Toolkit, folder: Path, job: str, port: int
) -> None:
    name = f"killed-{job}"
    assert toolkit("job", "submit", "--name", name).returncode == 0
    pid = notes(folder, port)["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    endpoint = folder / "runs" / name / "endpoints" / f"{job}.json"
    _until(lambda: not endpoint.exists())
    watched = toolkit("job", "watch", "--run", name)
    assert watched.returncode == 3
    assert f"job {job} of run {name} ended: FAILED, exit code 137" in watched.stderr
    assert "the server ended by itself with status 137" in watched.stderr
    assert "the run's other jobs go on, `toolkit job cancel` ends them" in watched.stderr


def test_no_engine_environment_is_told(toolkit: Toolkit) -> None:
    done = toolkit("job", "submit", "--name", "none", more=("target.engine_env=absent",))
    assert done.returncode == 3
    assert "exit code 97" in done.stderr
    assert "absent/bin; make the engine environment first" in done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0", "10.78.0.13"])
def test_a_port_in_use_on_the_routers_node_is_told(
    toolkit: Toolkit, plan: EmbeddedPlan, tmp_path: Path, address: str
) -> None:
    environ = {**os.environ, **cluster.slurm_environment(plan)}
    listening = tmp_path / "listening"
    program = (
        "import socket, pathlib, time\n"
        f"s = socket.create_server(({address!r}, 8000))\n"
        f"pathlib.Path({str(listening)!r}).touch()\ntime.sleep(300)\n"
    )
    (tmp_path / "squatter.py").write_text(program)
    wrapped = f"--wrap=exec {sys.executable} {tmp_path / 'squatter.py'}"
    asked = ["sbatch", "--parsable", "--partition=router", "--output=/dev/null", wrapped]
    job = subprocess.run(asked, capture_output=True, text=True, env=environ, check=True).stdout.strip()
    try:
        _until(listening.exists)
        done = toolkit("job", "submit", "--name", f"port-{address}")
    finally:
        subprocess.run(["scancel", job], env=environ, check=True)
    assert done.returncode == 3
    assert f"job router of run port-{address} ended: FAILED, exit code 98" in done.stderr
    assert "port 8000 on router-1 is in use" in done.stderr


def _until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
