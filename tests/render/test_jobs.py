"""Job scripts: whole golden files, shell syntax, shellcheck, and hostile values."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from toolkit.plan.run import RunPlan, places_of, plan_run
from toolkit.render.jobs import render_run
from toolkit.render.shell import command, quote
from toolkit.settings.deployment import Deployment

Deployments = Callable[..., Deployment]
HOSTILE = "a b;c$(touch pwned)`x`'\"\\ \n*é,{}"


def plan_of(settings: Deployment) -> RunPlan:
    base = Path("/home/user/pd")
    places = places_of(settings, base, base / ".venv/bin/python")
    return plan_run(settings, "golden", PurePosixPath("/shared/runs"), places, sweep=True)


@pytest.mark.parametrize("name", ["embedded", "qwen3-32b-p5en", "glm-5-fp8-p5en"])
def test_golden_scripts(name: str, deployment: Deployments, golden: Callable[[str, str], None]) -> None:
    scripts = render_run(plan_of(deployment(name)))
    assert [path.name for path in scripts] == [
        f"{job}.sbatch" for job in ("prefill-1", "decode-1", "router", "sweep")
    ]
    for path, text in scripts.items():
        golden(f"{name}/{path.name}", text)


def hostile(deployment: Deployments) -> Deployment:
    settings = deployment("embedded", "legs.prefill.replicas=2", "legs.decode.replicas=2")
    leg = settings.legs.prefill.model_copy(
        update={"env": {"HOSTILE": HOSTILE}, "extra_args": (HOSTILE, "--chat-template", HOSTILE)}
    )
    model = settings.model.model_copy(update={"name": f"/{HOSTILE}", "served_name": HOSTILE})
    legs = settings.legs.model_copy(update={"prefill": leg})
    return settings.model_copy(update={"legs": legs, "model": model})


@pytest.mark.parametrize("name", ["embedded", "qwen3-32b-p5en", "glm-5-fp8-p5en", "hostile"])
def test_every_script_is_sound_shell(name: str, deployment: Deployments, tmp_path: Path) -> None:
    settings = hostile(deployment) if name == "hostile" else deployment(name)
    for path, text in render_run(plan_of(settings)).items():
        script = tmp_path / path.name
        script.write_text(text)
        # Quoted $(...) in a hostile value is meant; shellcheck notes it as information.
        severity = "warning" if name == "hostile" else "style"
        for checker in (["bash", "-n"], ["shellcheck", f"--severity={severity}"]):
            done = subprocess.run([*checker, str(script)], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_values_reach_the_engine_unchanged(deployment: Deployments, tmp_path: Path) -> None:
    """The rendered script is run with a `vllm` that prints its arguments and environment."""
    settings = hostile(deployment)
    settings = settings.model_copy(
        update={"target": settings.target.model_copy(update={"engine_env": tmp_path / "an env"})}
    )
    places = places_of(settings, tmp_path, tmp_path / "python")
    plan = plan_run(settings, "x", PurePosixPath(tmp_path / "runs"), places)
    engine = tmp_path / "an env" / "bin" / "vllm"
    engine.parent.mkdir(parents=True)
    engine.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], os.environ['HOSTILE']]), flush=True)\n"
    )
    engine.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(render_run(plan)[plan.folder.script("prefill-1")])
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, cwd=tmp_path, check=False)
    arguments, environment = json.loads(next(line for line in done.stdout.splitlines() if line[0] == "["))
    assert ["vllm", *arguments] == list(plan.engines[0].arguments)
    assert environment == HOSTILE
    assert not (tmp_path / "pwned").exists()
    assert done.returncode == 1, "a server that ends by itself is a failed job"
    assert "the server ended by itself with status 0" in done.stderr


def test_the_p5en_line_carries_every_published_argument(deployment: Deployments) -> None:
    published = (
        "vllm serve Qwen/Qwen3-32B --served-model-name Qwen --dtype bfloat16 --tensor-parallel-size 8 "
        "--max-model-len 32768 --max-num-seqs 8 --no-enable-prefix-caching --port 8100"
    )
    engine = plan_of(deployment("qwen3-32b-p5en", "kv.bidirectional=false")).engines[0]
    line = " ".join(engine.arguments)
    assert line.startswith(published + " --kv-transfer-config ")
    config = json.loads(engine.arguments[engine.arguments.index("--kv-transfer-config") + 1])
    assert config.pop("kv_connector_module_path") == "pd_connector.connector"
    assert config.pop("kv_load_failure_policy") == "recompute"
    assert config == {
        "kv_connector": "NixlConnector",
        "kv_buffer_device": "cuda",
        "kv_role": "kv_producer",
        "engine_id": "prefill-engine-001",
        "kv_rank": 0,
        "kv_parallel_size": 2,
        "kv_connector_extra_config": {
            "backends": ["LIBFABRIC"],
            "kv_recompute_threshold": 64,
            "decoder_kv_blocks_ttl": 480,
            "bidirectional_kv_xfer": False,
        },
    }
    environment = dict(engine.environment)
    assert environment["FI_PROVIDER"] == "efa"
    assert environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


@pytest.mark.parametrize("threshold", ["auto", 0, 128])
@pytest.mark.parametrize("name", ["embedded", "qwen3-32b-p5en"])
def test_the_threshold_reaches_both_engines(name: str, threshold: int | str, deployment: Deployments) -> None:
    plan = plan_of(deployment(name, f"kv.recompute_threshold={threshold}"))
    scripts, usual = render_run(plan), render_run(plan_of(deployment(name)))
    for job in ("prefill-1", "decode-1"):
        text, before = scripts[plan.folder.script(job)], usual[plan.folder.script(job)]
        configs = [transfer_config(script) for script in (text, before)]
        values = [config["kv_connector_extra_config"].pop("kv_recompute_threshold") for config in configs]
        assert (values[0], type(values[0])) == (threshold, type(threshold))
        assert values[1] == deployment(name).kv.recompute_threshold != threshold
        assert configs[0] == configs[1], "nothing else of the line changes"


def transfer_config(script: str) -> dict[str, Any]:
    """The argument of --kv-transfer-config as a shell reads it from the rendered script."""
    [line] = [line for line in script.splitlines() if line.strip().startswith("--kv-transfer-config ")]
    config: dict[str, Any] = json.loads(shlex.split(line.removesuffix("\\"))[1])
    return config


def test_quote_gives_one_word_for_any_text() -> None:
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {quote(HOSTILE)} end"], capture_output=True, check=True
    )
    assert done.stdout.decode().split("\0")[:-1] == [HOSTILE, "end"]
    assert command(("vllm", "serve", "m", "--a", "b c", "--flag")) == (
        "vllm serve m \\\n  --a 'b c' \\\n  --flag"
    )
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")
