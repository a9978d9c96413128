"""Whose key may answer, and who is let in; every refusal says what to do, before anything is sent."""

from __future__ import annotations

import base64
import logging
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from paramiko import PKey, SSHClient

from toolkit.errors import ToolkitError
from toolkit.plan.ssh import SshAddress
from toolkit.remote.ssh_connection import HostKeyCheck
from toolkit.remote.ssh_head import SshHead
from toolkit.testing.serving import free_port, wait_until
from toolkit.testing.sshd import Sshd, fingerprint, make_key


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key, agent or known host of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield
    (home / ".ssh" / "known_hosts").unlink(missing_ok=True)


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / "config" / "known_hosts"


def reach(address: SshAddress) -> None:
    head = SshHead(address)
    try:
        assert head.run(["echo", "hi"]).stdout == "hi\n"
    finally:
        head.close()


def refusal(address: SshAddress) -> str:
    with pytest.raises(ToolkitError) as caught:
        reach(address)
    assert caught.value.next_step
    return str(caught.value)


def test_an_unknown_key_is_refused_and_shown(sshd: Sshd, known: Path) -> None:
    told = refusal(sshd.address(known))
    assert f"the host key of [127.0.0.1]:{sshd.port} is unknown: {sshd.fingerprint} (ssh-ed25519)" in told
    assert f"set target.ssh.fingerprint={sshd.fingerprint}" in told
    assert not known.exists()


def test_a_fingerprint_admits_and_is_remembered(sshd: Sshd, known: Path) -> None:
    reach(sshd.address(known, "SHA256:" + "A" * 43, sshd.fingerprint))
    public = (sshd.folder / "host_key.pub").read_text().split()
    assert known.read_text().split() == [f"[127.0.0.1]:{sshd.port}", *public[:2]]
    assert known.stat().st_mode & 0o777 == 0o600
    assert known.parent.stat().st_mode & 0o777 == 0o700
    reach(sshd.address(known))


def test_another_fingerprint_is_refused(sshd: Sshd, known: Path) -> None:
    told = refusal(sshd.address(known, "SHA256:" + "A" * 43))
    assert f"is {sshd.fingerprint} (ssh-ed25519), expected was SHA256:{'A' * 43}" in told


@pytest.mark.parametrize("hashed", [False, True])
def test_the_users_known_hosts_admit_and_are_left_alone(
    sshd: Sshd, known: Path, home: Path, hashed: bool
) -> None:
    from paramiko.hostkeys import HostKeys

    name = f"[127.0.0.1]:{sshd.port}"
    kind, key, *_ = (sshd.folder / "host_key.pub").read_text().split()
    users = home / ".ssh" / "known_hosts"
    users.parent.mkdir(exist_ok=True)
    shown = HostKeys.hash_host(name) if hashed else f"other,{name}"
    text = (
        f"# mine\nother sk-ssh-ed25519@openssh.com AAAA\nbroken ssh-ed25519 A\n\n{shown} {kind} {key} note\n"
    )
    users.write_text(text)
    reach(sshd.address(known))
    assert users.read_text() == text
    assert not known.exists()


def shown(address: SshAddress, sshd: Sshd) -> str:
    """What is said of the server's key without a connection: sshd shuts out who refuses it too often."""
    kind, key, *_ = (sshd.folder / "host_key.pub").read_text().split()
    server_key = PKey.from_type_string(kind, base64.b64decode(key))
    with pytest.raises(ToolkitError) as caught:
        HostKeyCheck(address).missing_host_key(SSHClient(), address.host, server_key)
    return str(caught.value)


@pytest.mark.parametrize("hosts", ["{name}", "*", "other.example", "|1|x|y", "a,{name}"])
@pytest.mark.parametrize("place", ["toolkit's", "user's"])
def test_a_revoked_key_is_refused_however_it_is_known(
    sshd: Sshd, known: Path, home: Path, hosts: str, place: str
) -> None:
    name = f"[127.0.0.1]:{sshd.port}"
    kind, key, *_ = (sshd.folder / "host_key.pub").read_text().split()
    file = known if place == "toolkit's" else home / ".ssh" / "known_hosts"
    file.parent.mkdir(exist_ok=True)
    revoked = f" @revoked\t{hosts.format(name=name)}  {kind} {key} stolen\n"
    for text in (revoked, f"{name} {kind} {key}\n{revoked}", f"{revoked}{name} {kind} {key}\n"):
        file.write_text(text)
        told = shown(sshd.address(known, sshd.fingerprint), sshd)
        assert f"{sshd.fingerprint} (ssh-ed25519), is REVOKED by a line of {file}" in told
        assert file.read_text() == text, "nothing is remembered of it"


def test_a_server_with_a_revoked_key_is_not_talked_to(sshd: Sshd, known: Path) -> None:
    kind, key, *_ = (sshd.folder / "host_key.pub").read_text().split()
    known.parent.mkdir()
    known.write_text(f"@revoked * {kind} {key}\n")
    assert "is REVOKED" in refusal(sshd.address(known, sshd.fingerprint))


def test_markers_of_other_keys_change_nothing(sshd: Sshd, known: Path) -> None:
    kind, key, *_ = (sshd.folder / "host_key.pub").read_text().split()
    known.parent.mkdir()
    other = f"{key[:-4]}AAAA"
    text = f"@revoked * {kind} {other}\n@revoked\n@revoked * {kind}\n@cert-authority * {kind} {key}\n"
    known.write_text(text)
    assert "is unknown" in shown(sshd.address(known), sshd)
    reach(sshd.address(known, sshd.fingerprint))
    assert known.read_text().startswith(text)


def test_a_known_hosts_file_may_hold_any_bytes(sshd: Sshd, known: Path) -> None:
    """Such as a comment in Latin-1: kept when a key is added."""
    known.parent.mkdir()
    garbled = (
        b"# caf\xe9\nh\xe9te ssh-ed25519 AAAA\n|1|\xff|\xfe ssh-rsa AAAA\n|1|a|b|c ssh-rsa AAAA\n"
        b"x ssh-rsa AAAAB3NzaC1yc2E\xe9\n\x00 \x85\n"
    )
    known.write_bytes(garbled)
    reach(sshd.address(known, sshd.fingerprint))
    assert known.read_bytes().startswith(garbled)
    assert len(known.read_bytes().splitlines()) == len(garbled.splitlines()) + 1
    reach(sshd.address(known))


def test_a_known_hosts_file_that_cannot_be_read_is_the_one_that_is_blamed(sshd: Sshd, known: Path) -> None:
    known.mkdir(parents=True)
    told = refusal(sshd.address(known, sshd.fingerprint))
    assert f"can't read {known}" in told
    assert "key_file" not in told


def test_a_changed_key_is_refused_with_both_until_its_fingerprint_is_set(tmp_path: Path, known: Path) -> None:
    server = Sshd(tmp_path, free_port())
    server.make_keys()
    former = server.fingerprint
    server.start()
    try:
        reach(server.address(known, former))
        server.stop()
        make_key(tmp_path / "host_key")
        server.start()
        for told in (refusal(server.address(known)), refusal(server.address(known, former))):
            assert "has CHANGED" in told
            assert former in told
            assert server.fingerprint in told
            assert str(known) in told
        reach(server.address(known, server.fingerprint))
        assert len(known.read_text().splitlines()) == 1, "the former key is forgotten"
        reach(server.address(known))
    finally:
        server.stop()


def test_a_key_of_a_known_type_is_asked_for_first(tmp_path: Path, known: Path) -> None:
    """The server has an ed25519 key too, which paramiko would ask for; only the RSA key is known."""
    rsa = tmp_path / "rsa"
    make_key(rsa, kind="rsa")
    server = Sshd(tmp_path, free_port(), options=(f"HostKey {rsa}",))
    server.make_keys()
    server.start()
    try:
        known.parent.mkdir()
        kind, key, *_ = Path(f"{rsa}.pub").read_text().split()
        known.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
        reach(server.address(known))
    finally:
        server.stop()


def test_a_wrong_user_key_is_told_and_nothing_is_asked(
    sshd: Sshd, address: SshAddress, tmp_path: Path
) -> None:
    make_key(tmp_path / "other")
    told = refusal(replace(address, key_file=tmp_path / "other"))
    assert f"{address} does not accept {tmp_path / 'other'}" in told
    assert "target.ssh.key_file" in told
    told = refusal(replace(address, key_file=None))
    assert "does not accept any key of the ssh agent and ~/.ssh" in told
    assert fingerprint(sshd.key) not in told


def test_without_a_key_file_the_users_default_keys_are_tried(
    sshd: Sshd, address: SshAddress, home: Path
) -> None:
    (home / ".ssh").mkdir(exist_ok=True)
    default = home / ".ssh" / "id_ed25519"
    default.write_bytes(sshd.key.read_bytes())
    try:
        reach(replace(address, key_file=None))
    finally:
        default.unlink()


def test_without_a_key_file_the_agents_keys_are_tried(
    sshd: Sshd, address: SshAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    with subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL
    ) as agent:
        try:
            wait_until((tmp_path / "agent").exists)
            subprocess.run(["ssh-add", "-q", str(sshd.key)], check=True)
            reach(replace(address, key_file=None))
        finally:
            agent.terminate()


def test_key_files_that_cannot_be_used(address: SshAddress, tmp_path: Path) -> None:
    told = refusal(replace(address, key_file=tmp_path / "absent"))
    assert f"target.ssh.key_file: can't read {tmp_path / 'absent'}" in told
    (tmp_path / "text").write_text("hello\n")
    assert "text is no private key" in refusal(replace(address, key_file=tmp_path / "text"))
    make_key(tmp_path / "locked", passphrase="secret words")
    told = refusal(replace(address, key_file=tmp_path / "locked"))
    assert "has a passphrase" in told
    assert "ssh-add" in told


def test_hosts_that_do_not_answer(address: SshAddress) -> None:
    told = refusal(replace(address, host="no-such-host.invalid"))
    assert "no host of the name no-such-host.invalid" in told
    assert "target.ssh.host" in told
    port = free_port()
    told = refusal(replace(address, port=port))
    assert f"nothing listens for ssh on 127.0.0.1 port {port}" in told
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first:
        first.connect(full.getsockname())  # takes the only place in the queue
        told = refusal(replace(address, port=full.getsockname()[1], connect_seconds=1))
        assert "does not answer within 1 s" in told


def test_something_else_on_the_port(
    address: SshAddress, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server, caplog.at_level(logging.CRITICAL):
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        told = refusal(replace(address, port=server.getsockname()[1]))
        thread.join()
    assert "no ssh connection to 127.0.0.1" in told
    assert "is that an ssh server?" in told
    assert capfd.readouterr().err == "", "no traceback of paramiko's"


def test_no_agent_is_forwarded_and_no_ssh_config_is_read(
    address: SshAddress, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".ssh").mkdir(exist_ok=True)
    config = home / ".ssh" / "config"
    config.write_text("Host *\n  ForwardAgent yes\n  User nobody\n  HostName 192.0.2.1\n")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
    head = SshHead(address)
    try:
        assert "SSH_AUTH_SOCK" not in head.run(["env"]).stdout
        assert head.names(PurePosixPath("/etc"))
    finally:
        head.close()
        config.unlink()
