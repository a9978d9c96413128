"""The demo's own jobs, with real engines, submitted from another machine over ssh: a chat through the tunnel,
and a sweep whose folder comes back for its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from openai import OpenAI

from toolkit.embedded import cluster
from toolkit.plan.embedded import EmbeddedPlan, plan_embedded
from toolkit.settings.load import load
from toolkit.testing.serving import free_port
from toolkit.testing.sshd import Sshd

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / ".venv-engine"
EMBEDDED = ROOT / "deployments" / "embedded.yaml"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slurm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]
Toolkit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def plan(folder: Path) -> Iterator[EmbeddedPlan]:
    settings = ["target.network=10.76.1.0/24", "target.slurm_port=17027", f"target.engine_env={ENGINE}"]
    made = plan_embedded(load(EMBEDDED, settings).deployment, folder, os.cpu_count() or 1)
    cluster.create(made, print)
    yield made
    cluster.delete(made, print)


@pytest.fixture(scope="module")
def deployment(plan: EmbeddedPlan, folder: Path) -> Iterator[Path]:
    """deployments/embedded.yaml with nothing changed but where it runs: behind an sshd, as a cluster is."""
    keys = folder / "sshd"
    keys.mkdir()
    server = Sshd(keys, free_port(), environment=dict(cluster.slurm_environment(plan)))
    server.make_keys()
    server.start()
    settings = yaml.safe_load(EMBEDDED.read_text())
    settings["target"] = {
        "kind": "parallelcluster",
        "cluster_name": "embedded",
        "region": "eu-west-1",
        "engine_env": str(ENGINE),
        "toolkit_env": sys.prefix,
        "runs_dir": str(folder / "shared" / "runs"),
        "hf_home": str(folder / "shared" / "hf"),
        "ssh": {
            "host": "127.0.0.1",
            "port": server.port,
            "user": "root",
            "key_file": str(server.key),
            "known_hosts": str(folder / "known_hosts"),
            "fingerprint": server.fingerprint,
        },
    }
    settings["model"]["name"] = str(Path(plan.root) / "models" / settings["model"]["name"])
    settings["sweep"] |= {
        "prompt_lengths": [600],
        "repeats": 1,
        "turns": 2,
        "output_tokens": 8,
        "turn_tokens": 24,
    }
    file = folder / "over-ssh.yaml"
    file.write_text(yaml.safe_dump(settings))
    yield file
    server.stop()


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laptop")


@pytest.fixture(scope="module")
def toolkit(deployment: Path, plan: EmbeddedPlan, laptop: Path) -> Iterator[Toolkit]:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "toolkit", *args, "-f", str(deployment)]
        return subprocess.run(command, capture_output=True, text=True, cwd=laptop, check=False)

    yield run
    run("job", "cancel", "--all")
    assert [job for job in cluster.describe(plan).jobs if job.state != "CG"] == []


def test_a_chat_through_the_tunnel_reads_back(toolkit: Toolkit, deployment: Path, laptop: Path) -> None:
    submitted = toolkit("job", "submit", "--name", "served")
    assert submitted.returncode == 0, submitted.stderr
    assert submitted.stdout == "http://10.76.1.13:8000/v1\n"
    command = [sys.executable, "-m", "toolkit", "job", "tunnel", "-f", str(deployment)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=laptop
    ) as tunnel:
        assert tunnel.stdout is not None
        url = tunnel.stdout.readline().strip()
        paths = []
        with OpenAI(base_url=url, api_key="none") as client:
            history = [{"role": "user", "content": " ".join(f"word{i}" for i in range(150))}]
            for _ in range(2):
                answer = client.chat.completions.with_raw_response.create(
                    model="tiny",
                    messages=history,
                    max_tokens=8,
                    extra_body={"conversation_id": "over-ssh"},
                    extra_headers={"X-KV-Path": "readback"},
                )
                paths.append(answer.headers["X-KV-Path"])
                said = answer.parse().choices[0].message.content or ""
                history += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
        tunnel.send_signal(signal.SIGINT)
        assert tunnel.wait(20) == 0
    assert paths == ["prefill", "readback"]
    assert "path=readback" in toolkit("job", "logs", "access", "--run", "served").stdout
    assert toolkit("job", "cancel", "--run", "served").returncode == 0


def test_a_sweeps_folder_comes_back_and_its_report_is_built_here(toolkit: Toolkit, laptop: Path) -> None:
    done = toolkit("sweep", "run", "--name", "small")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "runs/small\n"
    built = subprocess.run(
        [sys.executable, "-m", "toolkit", "report", "build", "runs/small"],
        capture_output=True,
        text=True,
        cwd=laptop,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    results = json.loads((laptop / "runs" / "small" / "results.json").read_text())
    assert (results["valid"], results["outputs_identical"]) == (True, True)
