"""The stage job's script run for real, with the real `hf`, against a hub on this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from toolkit.plan.staging import TOKEN_FILE, StagingPlan, plan_staging
from toolkit.render.staging import render_staging
from toolkit.settings.deployment import Deployment
from toolkit.testing.fake_hub import COMMIT, FakeHub, serve_hub
from toolkit.testing.serving import wait_until

ENGINE = Path(__file__).parents[2] / ".venv-engine"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not (ENGINE / "bin" / "hf").exists(), reason="needs the engine environment's hf"),
]
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
TOKEN = "hf_verysecret"


def repository() -> dict[str, bytes]:
    weights = random.Random(1)
    weight_map = {f"layer.{i}": SHARDS[i % 2] for i in range(4)}
    return {
        "config.json": b'{"model_type": "qwen3"}\n',
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        SHARDS[0]: weights.randbytes(3_000_000),
        SHARDS[1]: weights.randbytes(2_000_000),
    }


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub("org/model", repository(), frozenset(SHARDS))


@dataclass
class Stage:
    """A job as Slurm would run it, in its folder and with a home of its own."""

    plan: StagingPlan
    script: Path
    home: Path
    cache: Path

    @property
    def snapshot(self) -> Path:
        return self.cache / "hub" / "models--org--model" / "snapshots" / COMMIT

    @property
    def command(self) -> list[str]:
        return ["bash", str(self.script)]

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "SLURM_JOB_ID": "1"}

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environ,
            cwd=self.script.parent,
            check=False,
            timeout=100,
        )

    def put_token(self, mode: int) -> Path:
        token = self.home / TOKEN_FILE
        token.parent.mkdir(parents=True, exist_ok=True)
        token.write_text(TOKEN + "\n")
        token.chmod(mode)
        return token


@pytest.fixture
def stage(hub: FakeHub, deployment: Callable[..., Deployment], tmp_path: Path) -> Iterator[Stage]:
    with serve_hub(hub) as endpoint:
        settings = deployment(
            "qwen3-32b-p5en",
            f"model.name={hub.model}",
            f"target.engine_env={ENGINE}",
            f"target.hf_home={tmp_path / 'fsx' / 'hf home'}",
        )
        plan = plan_staging(settings, PurePosixPath(tmp_path / "runs"), endpoint)
        for path, text in render_staging(plan).items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
        home = tmp_path / "home"
        home.mkdir()
        yield Stage(plan, Path(plan.folder.script("stage")), home, tmp_path / "fsx" / "hf home")


def test_a_model_is_downloaded_checked_and_skipped_when_complete(stage: Stage, hub: FakeHub) -> None:
    done = stage.run()
    assert done.returncode == 0, done.stdout
    assert "org/model at 0123456789ab: 4 files, 5.0 MB, 5.0 MB to fetch" in done.stdout
    assert "org/model is complete: 4 files, 5.0 MB, checked in" in done.stdout
    assert {p.name: p.read_bytes() for p in stage.snapshot.iterdir()} == hub.files
    served = len(hub.served)
    again = stage.run()
    assert again.returncode == 0
    assert "org/model is complete, nothing to do: 4 files, 5.0 MB" in again.stdout
    assert len(hub.served) == served


@pytest.mark.parametrize("how", ["truncated", "changed", "removed"])
def test_a_damaged_file_is_found_and_fetched_again(stage: Stage, hub: FakeHub, how: str) -> None:
    assert stage.run().returncode == 0
    shard = stage.snapshot / SHARDS[1]
    blob = shard.resolve()
    if how == "truncated":
        os.truncate(blob, 1000)
    elif how == "changed":
        content = bytearray(blob.read_bytes())
        content[1_000_000] ^= 1
        blob.write_bytes(content)
    else:
        shard.unlink()
        blob.unlink()
    hub.served.clear()
    done = stage.run()
    assert done.returncode == 0, done.stdout
    assert hub.served == [SHARDS[1]], "the other files are kept"
    assert (f"{SHARDS[1]} is damaged" in done.stdout) == (how != "removed")
    assert shard.read_bytes() == hub.files[SHARDS[1]]


def test_a_small_file_is_checked_too(stage: Stage, hub: FakeHub) -> None:
    assert stage.run().returncode == 0
    (stage.snapshot / "config.json").resolve().write_text('{"model_type": "other"}\n')
    done = stage.run()
    assert done.returncode == 0, done.stdout
    assert "config.json is damaged" in done.stdout
    assert (stage.snapshot / "config.json").read_bytes() == hub.files["config.json"]


def test_a_job_that_was_killed_goes_on_where_it_was(stage: Stage, hub: FakeHub) -> None:
    hub.gate.clear()
    with subprocess.Popen(
        stage.command, env=stage.environ, cwd=stage.script.parent, start_new_session=True
    ) as job:
        blobs = stage.snapshot.parents[1] / "blobs"
        wait_until(lambda: len(list(blobs.glob("*.incomplete"))) >= 2)
        os.killpg(job.pid, signal.SIGKILL)
    hub.gate.set()
    left = list(blobs.glob("*.incomplete"))
    assert left, "hf removes them only when it may"
    for partial in left:
        os.utime(partial, (0, 0))
    done = stage.run()
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("left by a download that was killed") == len(left)
    assert list(blobs.glob("*.incomplete")) == []


def test_whole_files_outlive_a_transfer_that_breaks(stage: Stage, hub: FakeHub) -> None:
    hub.cut[SHARDS[0]] = 1_000_000
    done = stage.run()
    assert done.returncode == 1
    assert "attempt 3 of 3 was cut off; whole files are kept" in done.stdout
    assert "ERROR: org/model could not be downloaded whole; what is there is kept" in done.stdout
    assert hub.served.count(SHARDS[1]) == 1
    hub.cut.clear()
    assert stage.run().returncode == 0
    assert hub.served.count(SHARDS[1]) == 1


def test_an_index_that_names_a_shard_which_is_not_there(stage: Stage, hub: FakeHub) -> None:
    del hub.files[SHARDS[1]]
    done = stage.run()
    assert done.returncode == 1
    assert f"ERROR: model.safetensors.index.json of org/model names {SHARDS[1]}" in done.stdout


def test_too_little_room_is_told_before_anything_is_fetched(stage: Stage, hub: FakeHub) -> None:
    subprocess.run(["mkdir", "-p", stage.cache], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", stage.cache], check=True)
    try:
        done = stage.run()
    finally:
        subprocess.run(["umount", stage.cache], check=True)
    assert done.returncode == 1
    assert "ERROR: org/model needs 5.0 MB more and 1.1 GB to spare, but" in done.stdout
    assert "has 4.2 MB free" in done.stdout
    assert hub.served == []


def test_a_gated_model_needs_a_token_that_its_owner_let_in(stage: Stage, hub: FakeHub) -> None:
    hub.token = TOKEN
    done = stage.run()
    assert done.returncode == 1
    assert "ERROR: org/model is gated, and a user without a token may not download it" in done.stdout
    token = stage.put_token(0o600)
    token.write_text("hf_another\n")
    done = stage.run()
    assert done.returncode == 1
    assert f"and the token in {token} may not download it: accept its terms at http" in done.stdout
    stage.put_token(0o600)
    assert stage.run().returncode == 0


def test_a_token_that_others_can_read_is_refused(stage: Stage, hub: FakeHub) -> None:
    token = stage.put_token(0o640)
    done = stage.run()
    assert done.returncode == 1
    assert f"ERROR: others can read {token}; chmod 600 it" in done.stdout
    assert hub.served == []


def test_the_token_is_nowhere_but_in_its_file(stage: Stage, hub: FakeHub, tmp_path: Path) -> None:
    hub.token = TOKEN
    token = stage.put_token(0o600)
    hub.gate.clear()
    commands: set[str] = set()
    with subprocess.Popen(
        stage.command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=stage.environ,
        cwd=stage.script.parent,
        start_new_session=True,
    ) as job:
        blobs = stage.snapshot.parents[1] / "blobs"
        wait_until(
            lambda: commands.update(commands_of(job.pid)) or len(list(blobs.glob("*.incomplete"))) >= 2
        )
        hub.gate.set()
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 0, said
    assert any("hf download org/model" in command for command in commands)
    assert not any("verysecret" in text for text in (said, *commands))
    holding = [p for p in tmp_path.rglob("*") if p.is_file() and TOKEN.encode() in p.read_bytes()]
    assert holding == [token]


def commands_of(session: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) == session:
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def test_what_the_hub_does_not_have(stage: Stage, hub: FakeHub) -> None:
    hub.model = "org/another"
    done = stage.run()
    assert done.returncode == 1
    assert "ERROR: the hub has no model org/model, or not for a user without a token" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_hub_that_cannot_be_reached(stage: Stage) -> None:
    assert stage.plan.endpoint is not None
    stage.script.write_text(stage.script.read_text().replace(stage.plan.endpoint, "http://127.0.0.1:9"))
    done = stage.run()
    assert done.returncode == 1
    assert "ERROR: can't reach http://127.0.0.1:9 from this node" in done.stdout
    assert "Traceback" not in done.stdout


def test_no_engine_environment_is_told(stage: Stage) -> None:
    stage.script.write_text(stage.script.read_text().replace(str(ENGINE), "/absent"))
    done = stage.run()
    assert done.returncode == 97
    assert "ERROR: no hf in /absent/bin; make the engine environment first" in done.stdout
