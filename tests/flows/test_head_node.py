"""Which machine is the head node, decided from settings, this machine's files and what AWS says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.head_node import HeadNode, head_address, is_this_machine, no_lookup, remote_address
from toolkit.flows.target import open_target
from toolkit.plan.ssh import SshAddress
from toolkit.remote.head import LocalHead
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import ParallelClusterTarget

Deployments = Callable[..., Deployment]
SEEN = "SHA256:sTH9QQaaWvPBDaZxGvy8GXOwPqhCvmtVuGPU1O4PoIk"
SET = "SHA256:DWXt+NbgCxjsEBvjSQ5H73JTO9TSlhuFdX06vCUvVc0"
CONSOLE = (
    "-----BEGIN SSH HOST KEY FINGERPRINTS-----\n"
    f"256 {SEEN} root@ip-10-0-0-9 (ED25519)\n-----END SSH HOST KEY FINGERPRINTS-----\n"
)


@pytest.fixture
def target(deployment: Deployments) -> Callable[..., ParallelClusterTarget]:
    def get(*assignments: str) -> ParallelClusterTarget:
        made = deployment("qwen3-32b-p5en", "target.cluster_name=pd", *assignments).target
        assert isinstance(made, ParallelClusterTarget)
        return made

    return get


def ask(_: ParallelClusterTarget) -> HeadNode:
    return HeadNode("203.0.113.9", CONSOLE)


def test_settings_say_where_it_is(target: Callable[..., ParallelClusterTarget]) -> None:
    settings = ("target.ssh.host=head", "target.ssh.port=2222", "target.ssh.user=ec2-user")
    key = ("target.ssh.key_file=/k", f"target.ssh.fingerprint={SET}", "target.ssh.known_hosts=/h")
    address = head_address(target(*settings, *key), no_lookup)
    assert address == SshAddress("head", 2222, "ec2-user", Path("/k"), Path("/h"), (SET,))


def test_else_aws_says_it_and_its_console_vouches(target: Callable[..., ParallelClusterTarget]) -> None:
    address = head_address(target(), ask)
    assert address is not None
    assert (address.host, address.port, address.user, address.key_file) == ("203.0.113.9", 22, "ubuntu", None)
    assert address.fingerprints == (SEEN,)
    assert address.known_hosts == Path.home() / ".config" / "pd-toolkit" / "known_hosts"
    pinned = head_address(target(f"target.ssh.fingerprint={SET}"), ask)
    assert pinned is not None
    assert pinned.fingerprints == (SET,), "what the user says beats the console"
    named = head_address(target("target.ssh.host=head"), ask)
    assert named is not None
    assert named.fingerprints == (), "the console is of another address perhaps"


def test_nobody_says_it(target: Callable[..., ParallelClusterTarget]) -> None:
    with pytest.raises(ToolkitError, match="where the head node of pd is") as caught:
        remote_address(target(), no_lookup)
    assert "target.ssh.host" in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "here"),
    [
        ("stack_name=pd\ncfn_node_type=HeadNode\n", True),
        ("stack_name=pd\ncfn_node_type=LoginNode\n", True),
        ("cfn_node_type=HeadNode\n", True),
        ("stack_name=pd\ncfn_node_type=ComputeFleet\n", False),
        ("stack_name=other\ncfn_node_type=HeadNode\n", False),
        ("", False),
        (None, False),
    ],
)
def test_this_machine(
    target: Callable[..., ParallelClusterTarget], tmp_path: Path, facts: str | None, here: bool
) -> None:
    file = tmp_path / "cfnconfig"
    if facts is not None:
        file.write_text(facts)
    assert is_this_machine(target(), file) == here
    assert is_this_machine(target("target.ssh.host=local"), file)
    assert not is_this_machine(target("target.ssh.host=head"), file)


def test_a_target_is_opened_without_asking_anybody(deployment: Deployments) -> None:
    def never(_: ParallelClusterTarget) -> HeadNode:
        raise AssertionError("asked")

    remote = open_target(deployment("qwen3-32b-p5en"), never)
    assert remote.remote
    assert remote.places.toolkit_python == PurePosixPath("/opt/pd/toolkit/bin/python")
    for name, more in (("embedded", ()), ("qwen3-32b-p5en", ("target.ssh.host=local",))):
        local = open_target(deployment(name, *more), never)
        assert isinstance(local.head, LocalHead)
        assert not local.remote


def test_a_model_below_the_current_folder_is_not_on_another_machine(deployment: Deployments) -> None:
    with pytest.raises(SettingsError, match="the cluster is another"):
        open_target(deployment("qwen3-32b-p5en", "model.name=./model"))
    open_target(deployment("qwen3-32b-p5en", "model.name=./model", "target.ssh.host=local"))


def test_fabric_is_imported_only_for_another_machine() -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from toolkit.flows.target import open_target\nfrom toolkit.settings.load import load\n"
        "open_target(load(Path('deployments/embedded.yaml'), ()).deployment)\n"
        "print('fabric' in sys.modules, 'boto3' in sys.modules)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False False\n"
