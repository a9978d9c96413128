"""A real sshd on this machine with keys of its own, and both kinds of head node for one suite of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.plan.ssh import SshAddress
from toolkit.remote.head import Head, LocalHead
from toolkit.remote.ssh_head import SshHead
from toolkit.testing.serving import free_port
from toolkit.testing.sshd import SSHD, Sshd

# Variables of a login that no command may see.
USERS_OWN = {"HF_TOKEN": "hf_secret", "SBATCH_PARTITION": "x", "VLLM_PLUGINS": "none"}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if not SSHD.exists():
        pytest.skip("needs sshd: apt-get install openssh-server")
    server = Sshd(tmp_path_factory.mktemp("sshd"), free_port(), environment=USERS_OWN)
    server.make_keys()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def address(sshd: Sshd, tmp_path: Path) -> SshAddress:
    return sshd.address(tmp_path / "known" / "hosts", sshd.fingerprint)


@pytest.fixture
def ssh_head(address: SshAddress) -> Iterator[SshHead]:
    head = SshHead(address, {"SLURM_CONF": "/c d"})
    yield head
    head.close()


@pytest.fixture(params=["local", "ssh"])
def head(request: pytest.FixtureRequest) -> Head:
    if request.param == "local":
        return LocalHead({"SLURM_CONF": "/c d"})
    over_ssh: SshHead = request.getfixturevalue("ssh_head")
    return over_ssh


@pytest.fixture
def users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sshd's login has them already."""
    for name, value in USERS_OWN.items():
        monkeypatch.setenv(name, value)
