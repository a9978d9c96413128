"""The stage job's script: golden, sound shell, and what it must not hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.run import open_run
from toolkit.flows.staging import put_token, read_token, stage
from toolkit.flows.target import OpenTarget
from toolkit.plan.run import places_of
from toolkit.plan.staging import TOKEN_FILE, plan_staging
from toolkit.remote.head import Completed
from toolkit.remote.slurm import Slurm
from toolkit.render.staging import render_staging
from toolkit.settings.deployment import Deployment
from toolkit.testing.fake_head import FakeHead

Deployments = Callable[..., Deployment]
RUNS = PurePosixPath("/shared/runs")
ROOT = Path(__file__).parents[2]


def test_golden_script(deployment: Deployments, golden: Callable[[str, str], None]) -> None:
    plan = plan_staging(deployment("qwen3-32b-p5en"), RUNS)
    golden("qwen3-32b-p5en/stage.sbatch", render_staging(plan)[plan.folder.script("stage")])


@pytest.mark.parametrize("hostile", [False, True])
def test_sound_shell(deployment: Deployments, tmp_path: Path, hostile: bool) -> None:
    folder = "/a b;c$(touch pwned)`x`é,{}" if hostile else "/fsx/hf"
    settings = deployment("qwen3-32b-p5en", f'target.hf_home="{folder}"', f'target.engine_env="{folder}"')
    plan = plan_staging(settings, RUNS, "http://mirror/$(x)" if hostile else None)
    script = tmp_path / "stage.sh"
    script.write_text(render_staging(plan)[plan.folder.script("stage")])
    # Quoted $(...) in a hostile value is meant; shellcheck notes it as information.
    severity = "warning" if hostile else "style"
    for checker in (["bash", "-n"], ["shellcheck", f"--severity={severity}"]):
        done = subprocess.run([*checker, str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["/fsx/model", "./model", "gpt2", "a/b/c", "a/../b", "-x/y"])
def test_only_a_hub_id_is_downloaded(deployment: Deployments, name: str) -> None:
    with pytest.raises(SettingsError, match="no hub id"):
        plan_staging(deployment("qwen3-32b-p5en", f"model.name={name}"), RUNS)
    with pytest.raises(SettingsError, match="for a ParallelCluster"):
        plan_staging(deployment("embedded"), RUNS)


@pytest.fixture
def settings(deployment: Deployments) -> Deployment:
    return deployment("qwen3-32b-p5en")


@pytest.fixture
def head() -> FakeHead:
    return FakeHead(answers={"sh": Completed(0, "/home/ubuntu", "")})


@pytest.fixture
def target(settings: Deployment, head: FakeHead) -> OpenTarget:
    return OpenTarget(head, Slurm(head), places_of(settings, Path("/x"), Path("/p")), RUNS, remote=True)


def test_the_token_is_put_where_only_its_owner_reads_it(
    settings: Deployment, target: OpenTarget, head: FakeHead
) -> None:
    plan = plan_staging(settings, RUNS)
    told: list[str] = []
    stage(settings, plan, target, "hf_verysecret\n", told.append)
    token = PurePosixPath("/home/ubuntu") / TOKEN_FILE
    assert (head.files.pop(token), head.modes[token]) == ("hf_verysecret\n", 0o600)
    everything = [*head.files.values(), *told, *(" ".join(command) for command in head.commands)]
    assert not any("verysecret" in text for text in everything)
    assert head.files[plan.checker].startswith('"""')


def test_a_second_staging_finds_the_first_and_a_later_one_starts_anew(
    settings: Deployment, target: OpenTarget, head: FakeHead
) -> None:
    plan = plan_staging(settings, RUNS)
    first = stage(settings, plan, target, None, print)
    told: list[str] = []
    assert stage(settings, plan, target, None, told.append) == first
    assert len(head.jobs) == 1
    assert "already" in told[0]
    head.job("stage").state = "COMPLETED"
    stage(settings, plan, target, None, print)
    assert [job.state for job in head.jobs] == ["COMPLETED", "PENDING"]
    assert open_run(target, plan.folder.root).jobs == ["stage"]


def test_a_user_without_a_home(target: OpenTarget, head: FakeHead) -> None:
    head.answers = {"sh": Completed(0, "", "")}
    with pytest.raises(ToolkitError, match="no home folder"):
        put_token(target, "hf_x")
    assert head.files == {}


def test_a_token_file_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(SettingsError, match="can't read the token"):
        read_token(file)
    file.write_text("hf_verysecret\n")
    file.chmod(0o640)
    with pytest.raises(SettingsError, match="others can read") as caught:
        read_token(file)
    assert "verysecret" not in str(caught.value)
    file.chmod(0o600)
    assert read_token(file) == "hf_verysecret"
    file.write_text(" \n")
    with pytest.raises(SettingsError, match="is empty"):
        read_token(file)


def test_dry_run_prints_the_script_and_needs_no_head_node(tmp_path: Path) -> None:
    file = ROOT / "deployments" / "qwen3-32b-p5en.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", "job", "stage", "--dry-run", "-f", str(file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HF_TOKEN": "hf_verysecret", "HOME": str(tmp_path)},
        check=True,
    )
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=stage-Qwen--Qwen3-32B.stage\n")
    assert "verysecret" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
