"""A connection that drops: what may be done twice is, what may not is told, a lock is taken again."""

from __future__ import annotations

import threading
import time
from pathlib import Path, PurePosixPath

import pytest

from toolkit.errors import ToolkitError
from toolkit.remote.head import LocalHead
from toolkit.remote.ssh_head import SshHead
from toolkit.testing.serving import wait_until
from toolkit.testing.sshd import Sshd


def test_files_and_commands_go_on_over_a_new_connection(
    sshd: Sshd, ssh_head: SshHead, tmp_path: Path
) -> None:
    path = PurePosixPath(tmp_path) / "x"
    ssh_head.put(path, "1")
    sshd.drop_connections()
    assert ssh_head.get(path) == "1"
    sshd.drop_connections()
    ssh_head.put(path, "2")
    sshd.drop_connections()
    assert ssh_head.names(path.parent) == ["known", "x"]
    sshd.drop_connections()
    assert ssh_head.run(["cat", str(path)]).stdout == "2", "nothing was asked before the drop"


def drop_once_it_runs(sshd: Sshd, started: Path) -> threading.Thread:
    def drop() -> None:
        wait_until(started.exists)
        sshd.drop_connections()

    thread = threading.Thread(target=drop)
    thread.start()
    return thread


def test_a_command_that_may_be_repeated_is(sshd: Sshd, ssh_head: SshHead, tmp_path: Path) -> None:
    script = f"if mkdir {tmp_path}/1; then sleep 30; else echo again; fi 2>/dev/null"
    thread = drop_once_it_runs(sshd, tmp_path / "1")
    assert ssh_head.run(["sh", "-c", script], repeat=True).stdout == "again\n"
    thread.join()


def test_a_command_that_may_not_is_told(sshd: Sshd, ssh_head: SshHead, tmp_path: Path) -> None:
    script = f"echo x >>{tmp_path}/ran; sleep 2"
    thread = drop_once_it_runs(sshd, tmp_path / "ran")
    with pytest.raises(ToolkitError, match="dropped while `sh -c` ran; whether it was done is unknown"):
        ssh_head.run(["sh", "-c", script])
    thread.join()
    assert (tmp_path / "ran").read_text() == "x\n"
    assert ssh_head.run(["echo", "on"]).stdout == "on\n"


def test_a_file_that_was_cut_off_is_not_put(sshd: Sshd, ssh_head: SshHead, tmp_path: Path) -> None:
    """The remote end of a put sees a text end early, as when a connection breaks."""
    from toolkit.remote.ssh_head import PUT_SCRIPT

    path = tmp_path / "x"
    done = LocalHead().run(["sh", "-c", PUT_SCRIPT, "sh", str(path), "644", "9"], stdin="half")
    assert done.returncode == 1
    assert done.stderr == f"put: {path}: the connection was cut\n"
    assert list(tmp_path.iterdir()) == []
    assert sshd.process is not None
    assert ssh_head.get(PurePosixPath(path)) is None


def test_a_lock_outlives_a_drop(sshd: Sshd, ssh_head: SshHead, tmp_path: Path) -> None:
    lock = PurePosixPath(tmp_path) / ".lock"
    with ssh_head.lock(lock):
        sshd.drop_connections()
        assert ssh_head.size(lock) == 0
        with pytest.raises(ToolkitError, match="another toolkit works"), LocalHead().lock(lock):
            pass
    with LocalHead().lock(lock):
        pass


def test_a_lock_that_another_took_meanwhile_is_told(sshd: Sshd, ssh_head: SshHead, tmp_path: Path) -> None:
    """As after a laptop was shut for an hour; here the wait for a holder that may be our own is cut short."""
    lock = PurePosixPath(tmp_path) / ".lock"
    with ssh_head.lock(lock):
        ssh_head._locks[0].patience = 1
        sshd.drop_connections()
        deadline = time.monotonic() + 20
        while True:
            try:
                with LocalHead().lock(lock), pytest.raises(ToolkitError, match="another toolkit works"):
                    ssh_head.size(lock)
                break
            except ToolkitError:
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_a_holder_that_hears_nothing_gives_the_lock_up(tmp_path: Path) -> None:
    from toolkit.remote.ssh_lock import LOCK_SCRIPT

    lock = tmp_path / ".lock"
    # A pipe that stays open and silent, as a connection does whose other end has gone without a word.
    silent = (
        'timeout 20 bash -c "$0" bash "$1" 0 0.3 < <(exec sleep 60 >/dev/null 2>&1)\n'
        "status=$?; kill $!; exit $status"
    )
    done = LocalHead().run(["bash", "-c", silent, LOCK_SCRIPT, str(lock)])
    assert (done.returncode, done.stdout) == (0, "held\n")


def test_an_sshd_that_restarts_is_waited_for(sshd: Sshd, ssh_head: SshHead, tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path) / "x"
    ssh_head.put(path, "1")
    sshd.stop()
    thread = threading.Timer(1.5, sshd.start)
    thread.start()
    assert ssh_head.get(path) == "1", "tried again until it is back"
    thread.join()
