"""This machine as a head node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from toolkit.errors import ToolkitError
from toolkit.remote.head import LocalHead


def test_run_gives_status_and_both_outputs_and_adds_to_the_environment() -> None:
    done = LocalHead({"SLURM_CONF": "/c"}).run(["sh", "-c", "echo $SLURM_CONF; echo e >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "/c\n", "e\n")


def test_nothing_of_the_users_shell_reaches_a_command_but_what_it_needs(tmp_path: Path) -> None:
    """Run in a process of its own whose environment holds secrets and settings of other programs."""
    script = (
        "from toolkit.remote.head import LocalHead\n"
        "print(LocalHead({'SLURM_CONF': '/c'}).run(['env', '-0']).stdout)\n"
    )
    told = {"HF_TOKEN": "hf_secret", "SBATCH_PARTITION": "x", "SLURM_JOB_ID": "1", "VLLM_PLUGINS": ""}
    kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**told, **kept}, capture_output=True, text=True, check=True
    )
    seen = dict(entry.split("=", 1) for entry in done.stdout.strip().split("\0") if "=" in entry)
    assert seen == {**kept, "SLURM_CONF": "/c"}


def test_an_absent_command_is_told() -> None:
    with pytest.raises(ToolkitError, match="no-such-command is not on this machine"):
        LocalHead().run(["no-such-command"])


def test_a_command_that_hangs_is_told() -> None:
    with pytest.raises(ToolkitError, match="no answer within 0.1 s"):
        LocalHead().run(["sleep", "5"], timeout=0.1)


def test_files(tmp_path: Path) -> None:
    head = LocalHead()
    path = PurePosixPath(tmp_path) / "a" / "b.txt"
    assert head.get(path) is None
    assert head.names(path.parent) == []
    head.put(path, "häll\no\n")
    assert head.get(path) == "häll\no\n"
    assert head.get(path, tail=2) == "o\n"
    assert head.get(path, start=6) == "o\n", "bytes, not characters"
    assert head.names(path.parent) == ["b.txt"], "no half-written file is left beside it"


def test_what_lies_below_a_file_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "stray").touch()
    assert LocalHead().get(PurePosixPath(tmp_path) / "stray" / "jobs.json") is None
    with pytest.raises(ToolkitError, match="Not a directory") as caught:
        LocalHead().names(PurePosixPath(tmp_path) / "stray")
    assert "target.runs_dir" in str(caught.value)


def test_a_lock_is_held_against_others_and_ends_with_its_holder(tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path) / "run" / ".lock"
    script = (
        "import sys, time\nfrom pathlib import PurePosixPath\nfrom toolkit.remote.head import LocalHead\n"
        "with LocalHead().lock(PurePosixPath(sys.argv[1])):\n"
        "    print('held', flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ToolkitError, match="another toolkit works in .*run"), LocalHead().lock(path):
            pass
        holder.kill()
    with LocalHead().lock(path):
        pass


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolkitError, match="can't write .*file/x") as caught:
        LocalHead().put(PurePosixPath(tmp_path / "file" / "x"), "")
    assert "target.runs_dir" in str(caught.value)


def test_a_full_disk_is_told_and_leaves_no_half_file() -> None:
    with pytest.raises(ToolkitError, match="can't write"):
        LocalHead().put(PurePosixPath("/dev/full/x"), "text")
