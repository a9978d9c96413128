"""What a head node does, the same on this machine and over ssh."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import pytest

from toolkit.errors import ToolkitError
from toolkit.remote.head import INHERITED, Head, LocalHead
from toolkit.remote.ssh_head import SshHead

HOSTILE = "a b;c$(touch pwned)`x`'\"\\ \n*é,{}"


def test_run_gives_status_and_both_outputs_and_adds_to_the_environment(head: Head) -> None:
    done = head.run(["sh", "-c", 'echo "$SLURM_CONF"; echo e >&2; exit 3'])
    assert (done.returncode, done.stdout, done.stderr) == (3, "/c d\n", "e\n")


def test_arguments_arrive_as_they_are(head: Head) -> None:
    done = head.run(["printf", "%s|", HOSTILE, "", "-n"])
    assert done.stdout == f"{HOSTILE}||-n|"


def test_stdin_is_given_and_closed(head: Head) -> None:
    assert head.run(["cat"], stdin=HOSTILE).stdout == HOSTILE
    assert head.run(["cat"]).stdout == ""
    assert head.run(["true"], stdin="x" * 3_000_000).returncode == 0, "a command may leave it unread"


def test_bytes_that_are_no_text_and_much_output(head: Head) -> None:
    assert head.run(["printf", r"a\377b"]).stdout == "a�b"
    done = head.run(["sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero >&2"])
    assert (len(done.stdout), len(done.stderr)) == (20_000_000, 3_000_000)


@pytest.mark.usefixtures("users_own")
def test_nothing_of_the_users_shell_reaches_a_command_but_what_it_needs(head: Head) -> None:
    seen = dict(entry.split("=", 1) for entry in head.run(["env", "-0"]).stdout.rstrip("\0").split("\0"))
    assert set(seen) <= set(INHERITED)
    assert seen["HOME"] == str(Path.home())
    assert seen["SLURM_CONF"] == "/c d"


def test_an_absent_command_is_told(head: Head) -> None:
    with pytest.raises(ToolkitError, match="no-such-command is not on "):
        head.run(["no-such-command"])


def test_a_command_that_hangs_is_told_and_ends(head: Head, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="`sh -c .*` gave no answer within 0.3 s"):
        head.run(["sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 300"], timeout=0.3)
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_files(head: Head, tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path) / "a b" / "b $x.txt"
    assert head.get(path) is None
    assert head.size(path) is None
    assert head.names(path.parent) == []
    head.put(path, "häll\no\n")
    assert head.get(path) == "häll\no\n"
    assert head.size(path) == 8
    assert head.get(path, tail=2) == "o\n"
    assert head.get(path, tail=99) == "häll\no\n"
    assert head.get(path, start=6) == "o\n", "bytes, not characters"
    assert head.get(path, start=99) == ""
    assert head.get(path, start=3, limit=2) == "ll"
    assert head.names(path.parent) == ["b $x.txt"], "no half-written file is left beside it"
    assert Path(path).stat().st_mode & 0o777 == 0o644


def test_a_file_is_replaced_whole_and_a_secret_one_is_its_owners(head: Head, tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path) / "token"
    head.put(path, "old and long", mode=0o644)
    head.put(path, "new", mode=0o600)
    assert Path(path).read_text() == "new"
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_a_large_file_whole_and_its_end(head: Head, tmp_path: Path) -> None:
    content = os.urandom(1_000_000) * 50
    (tmp_path / "log").write_bytes(content)
    path = PurePosixPath(tmp_path) / "log"
    text = head.get(path)
    assert text is not None
    assert text.encode("utf-8", "surrogateescape") == content
    tail = head.get(path, tail=1000)
    assert tail is not None
    assert tail.encode("utf-8", "surrogateescape") == content[-1000:]


def test_what_lies_below_a_file_is_not_there(head: Head, tmp_path: Path) -> None:
    (tmp_path / "stray").touch()
    assert head.get(PurePosixPath(tmp_path) / "stray" / "jobs.json") is None
    with pytest.raises(ToolkitError, match="Not a directory") as caught:
        head.names(PurePosixPath(tmp_path) / "stray")
    assert "target.runs_dir" in str(caught.value)


def test_a_folder_is_no_file(head: Head, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=f"can't read {tmp_path}"):
        head.get(PurePosixPath(tmp_path))


def test_a_file_that_cannot_be_written_is_told(head: Head, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ToolkitError, match=r"can't write .*file/x: (Not a directory|File exists)\."
    ) as caught:
        head.put(PurePosixPath(tmp_path / "file" / "x"), "")
    assert "target.runs_dir" in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_told_and_leaves_no_half_file(head: Head, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        path = PurePosixPath(disk) / "x"
        head.put(path, "old")
        with pytest.raises(ToolkitError, match=f"can't write {path}: No space left on device"):
            head.put(path, "x" * 100_000)
        assert [entry.name for entry in disk.iterdir()] == ["x"]
        assert Path(path).read_text() == "old"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_lock_is_held_against_both_kinds_of_toolkit(head: Head, ssh_head: SshHead, tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path) / "run" / ".lock"
    with head.lock(path):
        for other in (LocalHead(), ssh_head):
            with pytest.raises(ToolkitError, match="another toolkit works in .*run"), other.lock(path):
                pass
    for other in (LocalHead(), ssh_head):
        with other.lock(path):
            pass


HOLDER = """
import sys, time
from pathlib import Path, PurePosixPath
from toolkit.plan.ssh import SshAddress
from toolkit.remote.head import LocalHead
from toolkit.remote.ssh_head import SshHead
lock, kind, *rest = sys.argv[1:]
if kind == "ssh":
    host, port, user, key, known = rest
    head = SshHead(SshAddress(host, int(port), user, Path(key), Path(known)))
else:
    head = LocalHead()
with head.lock(PurePosixPath(lock)):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_a_lock_ends_with_a_holder_that_was_killed(kind: str, ssh_head: SshHead, tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path) / ".lock"
    ssh_head.names(PurePosixPath("/"))  # leaves the host key in the file of known ones
    address = ssh_head._address
    more = (address.host, address.port, address.user, address.key_file, address.known_hosts)
    command = [sys.executable, "-c", HOLDER, str(path), kind, *map(str, more)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ToolkitError, match="another toolkit"), ssh_head.lock(path):
            pass
        holder.kill()
    deadline = time.monotonic() + 20
    while True:
        try:
            with ssh_head.lock(path):
                return
        except ToolkitError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
