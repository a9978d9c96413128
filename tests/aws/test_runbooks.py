"""The runbooks' commands, run in the order of an operator's days.

The real pcluster runs against the AWS stand-in; where a page speaks to the head node, a real sshd stands in
front of a real Slurm.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from toolkit.embedded import cluster
from toolkit.plan.embedded import EmbeddedPlan, plan_embedded
from toolkit.settings.load import load
from toolkit.testing.aws import Standin
from toolkit.testing.serving import free_port
from toolkit.testing.sshd import Sshd

pytestmark = [
    pytest.mark.aws,
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
CREATE = ["cluster", "create", "-f", "pd.yaml", "--yes"]
DELETE = ["cluster", "delete", "-f", "pd.yaml", "--yes"]


@dataclass(frozen=True)
class Before:
    """What the simulated AWS does from this page on, and what happened before the page is opened."""

    scenario: dict[str, object] = field(default_factory=dict)
    commands: tuple[tuple[list[str], int], ...] = ()  # with their exit codes


# In this order.
BEFORE = {
    "first-cluster": Before({"create_seconds": 2, "image_seconds": 2}),
    "slow-transfers": Before(),
    "node-replaced": Before(),
    "capacity-lost": Before(),
    "upgrade": Before(),
    "node-will-not-join": Before(
        {"outcome": "node-script", "create_seconds": 0}, ((DELETE, 0), ([*CREATE, "--no-rollback"], 1))
    ),
    "clean-up": Before({"outcome": "complete"}, ((CREATE, 0),)),
}
JUDGES = ("doctor",)  # exits with 1 where it finds an error, and here are no GPUs


def commands(page: str) -> list[list[str]]:
    text = (RUNBOOKS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("$ toolkit ") for line in lines), f"{page}: a console block holds output"
    return [shlex.split(line.removeprefix("$ toolkit ")) for line in lines]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPlan]:
    settings = ["target.network=10.74.0.0/24", "target.slurm_port=17217"]
    folder = tmp_path_factory.mktemp("slurm")
    plan = plan_embedded(load(ROOT / "deployments" / "embedded.yaml", settings).deployment, folder, 2)
    cluster.create(plan, print, engine=False)
    yield plan
    cluster.delete(plan, print)


@pytest.fixture(scope="module")
def environment(
    running_standin: Standin, slurm: EmbeddedPlan, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The account's, with the head node's address and folders that are writable here."""
    running_standin.reset()
    folder = tmp_path_factory.mktemp("operator")
    server = Sshd(folder, free_port(), environment=dict(cluster.slurm_environment(slurm)))
    server.make_keys()
    server.start()
    address = server.address(folder / "known_hosts", server.fingerprint)
    (folder / "pd.yaml").write_text(own_deployment(running_standin), encoding="utf-8")
    yield {
        **os.environ,
        **running_standin.environment,
        "PWD": str(folder),
        "TOOLKIT__TARGET__SSH__HOST": address.host,
        "TOOLKIT__TARGET__SSH__PORT": str(address.port),
        "TOOLKIT__TARGET__SSH__USER": address.user,
        "TOOLKIT__TARGET__SSH__KEY_FILE": str(address.key_file),
        "TOOLKIT__TARGET__SSH__KNOWN_HOSTS": str(address.known_hosts),
        "TOOLKIT__TARGET__SSH__FINGERPRINT": address.fingerprints[0],
        "TOOLKIT__TARGET__RUNS_DIR": str(folder / "runs"),
    }
    server.stop()


def own_deployment(standin: Standin) -> str:
    """The shipped deployment as first-cluster.md has it edited."""
    text = (ROOT / "deployments" / "qwen3-32b-p5en.yaml").read_text(encoding="utf-8")
    text = text.replace("subnet-0123456789abcdef0", standin.ids["public_subnet"])
    text = text.replace("subnet-0123456789abcdef1", standin.ids["private_subnet"])
    return text.replace("key_name: pd-key", "key_name: pd-key\n    allowed_from: 203.0.113.0/24")


def run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *arguments],
        env=environment,
        cwd=environment["PWD"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_page_is_run_and_listed() -> None:
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(BEFORE)
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    assert {name for name in pages if f"({name}.md)" not in index} == set()


@pytest.mark.parametrize("page", BEFORE)
def test_the_commands_of_a_page_run(page: str, running_standin: Standin, environment: dict[str, str]) -> None:
    before = BEFORE[page]
    running_standin.script(**before.scenario)
    for arguments, code in before.commands:
        done = run(arguments, environment)
        assert done.returncode == code, f"{arguments}: {done.stderr}"
    for arguments in commands(page):
        done = run(arguments, environment)
        told = f"toolkit {shlex.join(arguments)}\n{done.stdout}\n{done.stderr}"
        assert done.returncode in ((0, 1) if arguments[0] in JUDGES else (0,)), told
        assert "Traceback" not in told


def test_shell_blocks_are_sound_and_name_commands_that_exist() -> None:
    for path in RUNBOOKS.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            assert subprocess.run(["bash", "-n", "-c", block], check=False).returncode == 0, path
            for noun, verb in re.findall(r"^toolkit ([a-z]+) ([a-z]+)", block, re.MULTILINE):
                helped = run([noun, verb, "--help"], {**os.environ, "PWD": str(ROOT)})
                assert helped.returncode == 0, f"{path.name}: toolkit {noun} {verb}"
