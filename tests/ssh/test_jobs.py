"""Jobs submitted from another machine: a real sshd in front of a real Slurm, reached as a ParallelCluster's
head node is. The engine is a small server in vLLM's place; test_demo_jobs.py runs the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkit.embedded import cluster
from toolkit.plan.embedded import EmbeddedPlan, plan_embedded
from toolkit.plan.staging import TOKEN_FILE
from toolkit.settings.load import load
from toolkit.testing.fake_hub import FakeHub, serve_hub
from toolkit.testing.serving import free_port, wait_until
from toolkit.testing.sshd import Sshd

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "deployments" / "embedded.yaml"
ENGINE_ENV = ROOT / ".venv-engine"
Toolkit = Callable[..., subprocess.CompletedProcess[str]]

ENGINE = """#!{python}
import os, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print("engine: up, secret is", os.environ.get("HF_TOKEN"), flush=True)
ThreadingHTTPServer(("0.0.0.0", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""

DEPLOYMENT = """
name: over-ssh
target:
  kind: parallelcluster
  cluster_name: none
  region: eu-west-1
  engine_env: {folder}/engine
  toolkit_env: {prefix}
  runs_dir: {folder}/shared/runs
  ssh: {{host: 127.0.0.1, port: {port}, user: root, key_file: {key}, known_hosts: {folder}/known,
        fingerprint: "{fingerprint}"}}
model: {{name: a/b, served_name: b}}
legs: {{prefill: {{tensor_parallel: 8}}, decode: {{tensor_parallel: 8}}}}
router: {{port: 8010}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def plan(folder: Path) -> Iterator[EmbeddedPlan]:
    engine = folder / "engine" / "bin" / "vllm"
    engine.parent.mkdir(parents=True)
    engine.write_text(ENGINE.format(python=sys.executable))
    engine.chmod(0o755)
    settings = ["target.network=10.76.0.0/24", "target.slurm_port=17017", "target.engine_env=engine"]
    made = plan_embedded(load(EMBEDDED, settings).deployment, folder, os.cpu_count() or 1)
    cluster.create(made, print, engine=False)
    yield made
    cluster.delete(made, print)


@pytest.fixture(scope="module")
def head_node(plan: EmbeddedPlan, folder: Path) -> Iterator[Sshd]:
    keys = folder / "sshd"
    keys.mkdir()
    server = Sshd(keys, free_port(), environment=dict(cluster.slurm_environment(plan)))
    server.make_keys()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def deployment(head_node: Sshd, folder: Path) -> Path:
    file = folder / "over-ssh.yaml"
    text = DEPLOYMENT.format(
        folder=folder,
        prefix=sys.prefix,
        port=head_node.port,
        key=head_node.key,
        fingerprint=head_node.fingerprint,
    )
    file.write_text(text)
    return file


@pytest.fixture
def command(deployment: Path) -> Callable[..., list[str]]:
    return lambda *args: [sys.executable, "-m", "toolkit", *args, "-f", str(deployment)]


@pytest.fixture
def toolkit(command: Callable[..., list[str]], plan: EmbeddedPlan, tmp_path: Path) -> Iterator[Toolkit]:
    """Run as on a laptop: in a folder of its own, with a token in the shell, and knowing no Slurm."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "HF_TOKEN": "hf_verysecret", "SLURM_CONF": "/nowhere"}
        return subprocess.run(
            command(*args), capture_output=True, text=True, cwd=tmp_path, env=environ, check=False
        )

    yield run
    run("job", "cancel", "--all")
    assert [job for job in cluster.describe(plan).jobs if job.state != "CG"] == []


def test_the_whole_life_of_a_run(
    toolkit: Toolkit, command: Callable[..., list[str]], folder: Path, tmp_path: Path
) -> None:
    submitted = toolkit("job", "submit", "--name", "first")
    assert submitted.returncode == 0, submitted.stderr
    assert submitted.stdout == "http://10.76.0.13:8010/v1\n"
    assert "`toolkit job tunnel -f" in submitted.stderr
    run = folder / "shared" / "runs" / "first"
    assert f"{sys.prefix}/bin/python" in (run / "scripts" / "router.sbatch").read_text()
    assert "verysecret" not in "".join(p.read_text() for p in run.rglob("*") if p.is_file())

    listed = [line.split("\t") for line in toolkit("job", "list").stdout.splitlines()[1:]]
    assert [(row[0], row[1], row[3]) for row in listed] == [
        ("first", "prefill-1", "RUNNING"),
        ("first", "decode-1", "RUNNING"),
        ("first", "router", "RUNNING"),
    ]
    logs = toolkit("job", "logs", "prefill-1", "--run", "first").stdout
    assert "engine: up, secret is None" in logs

    with subprocess.Popen(
        command("job", "tunnel"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as tunnel:
        assert tunnel.stdout is not None
        url = tunnel.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        health = url.replace("/v1", "/health")
        with urllib.request.urlopen(health, timeout=20) as answer:
            assert answer.status == 200
        tunnel.send_signal(signal.SIGINT)
        assert tunnel.wait(20) == 0

    followed = subprocess.Popen(
        command("job", "logs", "decode-1", "--follow"), stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert toolkit("job", "cancel", "--run", "first").returncode == 0
    said, _ = followed.communicate(timeout=30)
    assert followed.returncode == 0
    assert "engine: up" in said
    assert "stopped on request" in said
    assert toolkit("job", "watch", "--run", "first").returncode == 0

    fetched = toolkit("job", "download", "--run", "first")
    assert fetched.returncode == 0, fetched.stderr
    here = tmp_path / fetched.stdout.strip()
    assert here == tmp_path / "runs" / "first"
    assert contents(here) == {k: v for k, v in contents(run).items() if k != ".lock"}
    again = toolkit("job", "download", "--run", "first")
    assert "fetching 0 of " in again.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_job_that_dies_is_told_with_its_log(toolkit: Toolkit) -> None:
    done = toolkit("job", "submit", "--name", "none", "--set", "target.engine_env=/absent")
    assert done.returncode == 3
    assert "/absent/bin; make the engine environment first" in done.stderr


def test_a_stopped_sweep_leaves_no_job_and_its_lock_is_free(
    command: Callable[..., list[str]], plan: EmbeddedPlan, tmp_path: Path
) -> None:
    sweep = command("sweep", "run", "--name", "stopped")
    with subprocess.Popen(sweep, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: any(job.state == "R" for job in cluster.describe(plan).jobs))
        locked = subprocess.run(sweep, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert locked.returncode == 1
        assert "another toolkit works in" in locked.stderr
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert [job for job in cluster.describe(plan).jobs if job.state != "CG"] == []
    status = subprocess.run(
        command("sweep", "status", "--name", "stopped", "-o", "json"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [leg["done"] for leg in json.loads(status.stdout)] == [0, 0]


def test_the_connection_drops_while_a_run_starts(
    toolkit: Toolkit, command: Callable[..., list[str]], head_node: Sshd, plan: EmbeddedPlan, tmp_path: Path
) -> None:
    submit = command("job", "submit", "--name", "dropped")
    with subprocess.Popen(submit, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        wait_until(lambda: len(cluster.describe(plan).jobs) == 3)
        head_node.drop_connections()
        said, _ = running.communicate(timeout=60)
    assert (running.returncode, said) == (0, "http://10.76.0.13:8010/v1\n")
    assert toolkit("job", "cancel", "--run", "dropped").returncode == 0


@pytest.mark.engine
@pytest.mark.skipif(not (ENGINE_ENV / "bin" / "hf").exists(), reason="needs the engine environment's hf")
def test_a_model_is_staged_by_a_job(toolkit: Toolkit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of this machine's shell reaches the head node's file, and from there the hub."""
    shards = {"model.safetensors": b"x" * 1_000_000, "config.json": b"{}"}
    hub = FakeHub("org/model", shards, frozenset({"model.safetensors"}), token="hf_verysecret")
    stage = (
        *("job", "stage", "--set", "model.name=org/model", "--set", f"target.engine_env={ENGINE_ENV}"),
        *("--set", f"target.hf_home={folder}/shared/hf"),
    )
    token = Path.home() / TOKEN_FILE
    former = token.read_bytes() if token.exists() else None
    with serve_hub(hub, "10.76.0.1") as endpoint:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        try:
            first, again = toolkit(*stage), toolkit(*stage)
            assert token.stat().st_mode & 0o777 == 0o600
        finally:
            token.unlink(missing_ok=True)
            if former is not None:
                token.write_bytes(former)
    assert first.returncode == 0, first.stderr
    assert first.stdout == "stage-org--model\n"
    assert "org/model is complete: 2 files, 1.0 MB" in first.stderr
    assert "org/model is complete, nothing to do" in again.stderr
    run = folder / "shared" / "runs" / "stage-org--model"
    everything = [first.stdout + first.stderr, *(p.read_text() for p in run.rglob("*") if p.is_file())]
    assert not any("verysecret" in text for text in everything)


def test_a_head_node_that_refuses_is_one_paragraph(toolkit: Toolkit, tmp_path: Path) -> None:
    done = toolkit("job", "list", "--set", "target.ssh.user=nobody")
    assert done.returncode == 1
    assert "nobody@127.0.0.1" in done.stderr
    assert "target.ssh.user" in done.stderr
    assert "Traceback" not in done.stderr
    rendered = toolkit("job", "render", "--set", "target.ssh.host=no-such-host.invalid")
    assert rendered.returncode == 0, "what is only printed needs no head node"
    assert not (tmp_path / "runs").exists()
