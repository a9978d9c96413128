"""The AWS story against the stand-in, as an operator types it, from a mistake to the clean-up.

`python -m toolkit.testing.aws.demo` (`make demo-aws`). Every command is the real one and runs the real
pcluster; only AWS is simulated, and nothing runs on the simulated nodes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import as_file
from pathlib import Path

from toolkit.data import shipped
from toolkit.testing.aws import Standin, aws_standin

DEPLOYMENT = "qwen3-32b-p5en.yaml"
TWO_ROUTERS = ("--set", "target.router.max_nodes=2")


@dataclass(frozen=True)
class Stage:
    """Runs `toolkit` with an environment in which AWS is the stand-in."""

    environment: Mapping[str, str]
    folder: Path

    def say(self, text: str) -> None:
        print(f"\n== {text}", flush=True)

    def toolkit(self, *arguments: str, expect: int = 0) -> None:
        """Shows the command and its output as they are; ends the demo if its exit code is another."""
        print(f"$ {shlex.join(('toolkit', *arguments))}", flush=True)
        argv = [sys.executable, "-m", "toolkit", *arguments]
        done = subprocess.run(argv, env=self.environment, cwd=self.folder, check=False)
        if done.returncode != expect:
            sys.exit(f"demo-aws: exit code {done.returncode}, expected {expect}")
        if expect:
            print(f"(exit code {expect})", flush=True)


def account_settings(ids: Mapping[str, str]) -> dict[str, str]:
    """The shipped deployments name example ids; these are the stand-in account's, as environment settings."""
    return {
        "TOOLKIT__TARGET__NETWORK__HEAD_SUBNET": ids["public_subnet"],
        "TOOLKIT__TARGET__NETWORK__COMPUTE_SUBNET": ids["private_subnet"],
        "TOOLKIT__TARGET__SSH__ALLOWED_FROM": "203.0.113.0/24",
    }


def play(stage: Stage, standin: Standin) -> None:
    file = ("-f", DEPLOYMENT)
    stage.say("A mistake is told before anything is made: the reservation is for another instance type")
    wrong = f"target.capacity.reservation={standin.ids['reservation_wrong_type']}"
    stage.toolkit("cluster", "create", *file, "--set", wrong, expect=2)

    stage.say("The nodes' image: driver, CUDA and EFA raised to the versions of the published system")
    standin.script(image_seconds=8)
    stage.toolkit("image", "build", *file, "--yes")
    stage.toolkit("image", "describe", *file)

    stage.say("A first try fails: the nodes' own check ends badly. Why, and the lines that prove it")
    standin.script(create_seconds=6, outcome="node-script", delete_seconds=3)
    stage.toolkit("cluster", "create", *file, "--yes", expect=1)
    stage.toolkit("cluster", "delete", *file, "--yes")

    stage.say("The cluster")
    standin.script(create_seconds=12, outcome="complete")
    stage.toolkit("cluster", "create", *file, "--yes")
    stage.toolkit("cluster", "list", *file)

    stage.say("A change: what differs, and the update")
    standin.script(update_seconds=4)
    stage.toolkit("cluster", "update", *file, *TWO_ROUTERS, "--yes")

    stage.say("Clean-up: what goes, what stays")
    stage.toolkit("cluster", "delete", *file, *TWO_ROUTERS, "--yes")


def main() -> None:
    began = time.monotonic()
    print("AWS is SIMULATED here (moto on this machine): no account, no network, nothing is billed.")
    print("Real: toolkit, pcluster, boto3 and what they send. Not real: every answer, node and time.")
    with ExitStack() as stack:
        standin = stack.enter_context(aws_standin())
        deployment = stack.enter_context(as_file(shipped("deployments", DEPLOYMENT)))
        stage = Stage(
            {**os.environ, **standin.environment, **account_settings(standin.ids)}, deployment.parent
        )
        play(stage, standin)
    print(f"\nThe whole story took {time.monotonic() - began:.0f} s, against a simulated AWS.")


if __name__ == "__main__":
    main()
