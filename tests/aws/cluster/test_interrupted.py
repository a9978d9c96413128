"""A toolkit that is stopped: the creation goes on, and any later command follows it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.aws, pytest.mark.slow]


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout
    told = ""
    while words not in told:
        line = process.stdout.readline()
        assert line, f"ended with {process.wait()} before {words!r}:\n{told}"
        told += line
    return told


def test_stopped_and_killed_and_followed_to_the_end(fresh: Callable[..., Any]) -> None:
    toolkit = fresh("3.16.1", create_seconds=2, hold=True)
    first = toolkit.start("create", "--yes")
    read_until(first, "CREATE_COMPLETE")
    first.send_signal(signal.SIGINT)
    told, _ = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "the creation goes on without this command" in told
    assert "`toolkit cluster describe -f" in told
    assert "--wait` follows it" in told

    toolkit.standin.forget_calls()
    other = toolkit.having("target.router.max_nodes=2")("create", "--yes", expect=2).stderr
    assert "is being created in ap-south-1, but not from these settings" in other
    assert "toolkit cluster diff" in other
    assert "toolkit cluster delete" in other
    second = toolkit.start("create", "--yes")
    read_until(second, "is being created already")
    second.send_signal(signal.SIGKILL)
    second.communicate(timeout=60)

    following = toolkit.start("describe", "--wait", "-o", "json")
    read_until(following, "CREATE_COMPLETE HeadNode")
    toolkit.standin.script(hold=False)
    told, _ = following.communicate(timeout=280)
    assert following.returncode == 0, told
    assert "create complete" in told
    assert '"state": "CREATE_COMPLETE"' in told
    assert toolkit.standin.creating_calls() == ()


def test_no_wait_leaves_and_a_failure_is_told_later(fresh: Callable[..., Any]) -> None:
    toolkit = fresh("3.14.2", create_seconds=4, outcome="head-capacity")
    left = toolkit("create", "--yes", "--no-wait")
    assert left.stdout == "pd-p5en\n"
    assert "describe" in left.stderr
    told = toolkit("describe", "--wait", expect=1).stderr
    assert "(capacity)" in told
    assert "sufficient c6i.2xlarge capacity" in told
