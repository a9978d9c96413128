"""`toolkit image build --dry-run`: the texts that would be sent, without any network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
P5EN = ROOT / "deployments" / "qwen3-32b-p5en.yaml"


def image(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    # Neither credentials nor an address that answers: a call to AWS would fail.
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "HOME": str(home), "TOOLKIT_CACHE": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "image", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], **nowhere},
    )


@pytest.mark.parametrize("name", ["qwen3-32b-p5en", "glm-5-fp8-p5en"])
def test_a_dry_run_prints_the_configuration_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    done = image("build", "-f", str(ROOT / "deployments" / f"{name}.yaml"), "--dry-run", home=tmp_path)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    assert config["Region"] == "ap-south-1"
    assert config["Build"]["Components"][0]["Value"].endswith(".sh")
    assert "looked up before the build" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_component_with_the_payloads_digest(tmp_path: Path) -> None:
    done = image("build", "-f", str(P5EN), "--dry-run", "--show", "component", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/usr/bin/env bash\n")
    digest = next(line for line in done.stdout.splitlines() if line.startswith("payload_sha256="))
    address = next(line for line in done.stdout.splitlines() if line.startswith("payload=s3://"))
    assert f"payload-{digest.partition('=')[2][:16]}.tar.gz" in address
    script = tmp_path / "component.sh"
    script.write_text(done.stdout)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_a_build_without_a_bucket_is_refused(tmp_path: Path) -> None:
    done = image("build", "-f", str(P5EN), "--set", "target.bucket=null", "--dry-run", home=tmp_path)
    assert done.returncode == 2
    assert "target.bucket" in done.stderr


def test_a_deployment_that_is_not_on_aws_has_no_image(tmp_path: Path) -> None:
    done = image("list", "-f", str(ROOT / "deployments" / "embedded.yaml"), home=tmp_path)
    assert done.returncode == 1
    assert "only clusters on AWS have images" in done.stderr
