"""The toolkit as a user calls it, against simulated AWS: a process of its own, on the shipped deployment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import boto3
import pytest

from toolkit.testing.aws import Standin
from toolkit.testing.aws.node_image import seed_node_image

ROOT = Path(__file__).parents[3]
DEPLOYMENT = ROOT / "deployments" / "qwen3-32b-p5en.yaml"
BUCKET = "pd-toolkit-123456789012-ap-south-1"
NAME = "pd-p5en"
# What a process needs besides the stand-in's names; no AWS_* of the machine's own.
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "TOOLKIT_CACHE")

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Toolkit:
    """`toolkit cluster VERB -f DEPLOYMENT ...` with the ids of the stand-in's account."""

    standin: Standin
    folder: Path
    settings: tuple[str, ...]

    def argv(self, verb: str, *more: str) -> list[str]:
        sets = [word for each in self.settings for word in ("--set", each)]
        main = "from toolkit.cli import main; main()"
        return [sys.executable, "-c", main, "cluster", verb, "-f", str(DEPLOYMENT), *sets, *more]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**kept, **self.standin.environment}

    def __call__(self, verb: str, *more: str, expect: int = 0, stdin: int | None = None) -> Done:
        done = subprocess.run(
            self.argv(verb, *more),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            timeout=280,
            check=False,
        )
        assert done.returncode == expect, (
            f"{verb} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr
        return done

    def start(self, verb: str, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(verb, *more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )

    def having(self, *settings: str) -> Toolkit:
        return replace(self, settings=(*self.settings, *settings))

    def client(self, service: str) -> object:
        environment = self.standin.environment
        return boto3.client(
            service,
            region_name="ap-south-1",
            endpoint_url=self.standin.url,
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )


@pytest.fixture(scope="module")
def fresh(running_standin: Standin, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Toolkit]:
    """A clean account with a node image for a version, and the toolkit on it."""

    def make(version: str, **scenario: object) -> Toolkit:
        running_standin.reset()
        ids = running_standin.ids
        toolkit = Toolkit(
            running_standin,
            tmp_path_factory.mktemp("cwd"),
            (
                f"target.version={version}",
                f"target.network.head_subnet={ids['public_subnet']}",
                f"target.network.compute_subnet={ids['private_subnet']}",
                f"target.bucket={BUCKET}",
                "target.ssh.allowed_from=203.0.113.0/24",
            ),
        )
        seed_node_image(toolkit.client("ec2"), version)
        running_standin.script(**scenario)
        running_standin.forget_calls()
        return toolkit

    return make


@pytest.fixture
def toolkit(fresh: Callable[..., Toolkit], standin: Standin) -> Iterator[Toolkit]:
    """Of the published version, where nothing takes time."""
    yield fresh("3.14.2")
    standin.reset()
