"""Slurm's answers, as real controllers of three versions gave them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

from toolkit.errors import JobFailed, ToolkitError
from toolkit.remote.head import Completed
from toolkit.remote.slurm import JobState, Slurm, parse_job_id, parse_states
from toolkit.testing.fake_head import FakeHead

RECORDED = Path(__file__).parent / "squeue"


def recorded(version: str) -> dict[int, JobState]:
    return parse_states((RECORDED / f"slurm-{version}.json").read_text())


@pytest.mark.parametrize("version", ["24.11.5", "26.05.5"])
def test_states_of_newer_slurm(version: str) -> None:
    states = recorded(version)
    assert states[1] == JobState(1, "a b", "RUNNING", "None", "prefill-1", 0, 0)
    assert states[8].how == "FAILED, exit code 3 (NonZeroExitCode)"
    assert states[3].how == "FAILED, signal 9 (RaisedSignal)"
    assert (states[5].pending, states[5].ended, states[5].reason) == (True, False, "Dependency")
    assert (states[7].state, states[7].ended, states[7].ended_badly) == ("CANCELLED", True, False)
    assert states[2].ended_badly


def test_states_of_slurm_22_05() -> None:
    states = recorded("22.05")
    assert states[6] == JobState(6, "sigB", "RUNNING", "None", "decode-1", 0, 0)
    assert (states[3].state, states[3].nodes, states[3].ended) == ("COMPLETED", "router", True)
    assert (states[4].state, states[4].signal, states[4].exit_code) == ("CANCELLED", 9, 0)


def test_a_raw_wait_status_is_exit_code_and_signal() -> None:
    job = (
        '{"job_id": 1, "name": "x", "job_state": "FAILED", "state_reason": "r", "nodes": "n", '
        '"exit_code": %d}'
    )
    assert parse_states('{"jobs": [' + job % 768 + "]}")[1].exit_code == 3
    assert parse_states('{"jobs": [' + job % 9 + "]}")[1].signal == 9


def test_a_cancelled_job_that_is_completing_has_not_ended() -> None:
    text = (RECORDED / "slurm-24.11.5.json").read_text()
    text = text.replace('"CANCELLED"', '"CANCELLED", "COMPLETING"')
    assert not parse_states(text)[7].ended


def test_a_controller_that_does_not_answer_is_no_empty_list() -> None:
    text = '{"errors": [{"error": "slurm_load_jobs: Unable to contact slurm controller"}], "jobs": []}'
    with pytest.raises(ToolkitError, match="Unable to contact slurm controller"):
        parse_states(text)


def test_states_are_asked_again_while_the_controller_is_away() -> None:
    answers = iter([Completed(1, "", "squeue: error: away"), Completed(0, '{"jobs": []}', "")])

    class Restarting(FakeHead):
        def run(
            self, argv: Sequence[str], *, stdin: str = "", timeout: float = 60, repeat: bool = False
        ) -> Completed:
            super().run(argv, stdin=stdin, timeout=timeout, repeat=repeat)
            return next(answers)

    assert Slurm(Restarting()).states(patience=60) == {}
    answers = iter([Completed(1, "", "squeue: error: away")])
    with pytest.raises(ToolkitError, match="away"):
        Slurm(Restarting()).states()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": [{}]}', "squeue: error: no"])
def test_anything_else_is_no_job_list(text: str) -> None:
    with pytest.raises(ToolkitError, match="not Slurm's job list"):
        parse_states(text)


@pytest.mark.parametrize(
    ("text", "job_id"), [("12\n", 12), ("12;cluster\n", 12), ("site: hello 99\n12\n", 12)]
)
def test_job_id(text: str, job_id: int) -> None:
    assert parse_job_id(text) == job_id


@pytest.mark.parametrize("text", ["", "Submitted", "12 13"])
def test_no_job_id(text: str) -> None:
    with pytest.raises(ToolkitError, match="no job id"):
        parse_job_id(text)


def test_a_refusal_is_told_in_slurms_words() -> None:
    head = FakeHead(answers={"sbatch": Completed(1, "", "sbatch: error: invalid partition specified: x")})
    with pytest.raises(JobFailed, match="invalid partition specified: x") as caught:
        Slurm(head).submit(PurePosixPath("/r/scripts/prefill-1.sbatch"))
    assert "prefill-1.sbatch" in str(caught.value)


def test_no_controller() -> None:
    head = FakeHead(answers={"scontrol": Completed(1, "Slurmctld(primary) at head is DOWN\n", "")})
    with pytest.raises(ToolkitError, match="DOWN") as caught:
        Slurm(head).check()
    assert "head node" in str(caught.value)
    head.files[PurePosixPath("/x/slurm.conf")] = ""
    with pytest.raises(ToolkitError, match="toolkit cluster create"):
        Slurm(head, conf=PurePosixPath("/x/slurm.conf")).check()


def test_no_cluster_is_told_without_asking_slurm() -> None:
    head = FakeHead()
    with pytest.raises(ToolkitError, match="no cluster is up"):
        Slurm(head, conf=PurePosixPath("/x/slurm.conf")).states()
    assert head.commands == []


def test_states_are_one_call_and_cancel_names_all() -> None:
    head = FakeHead()
    slurm = Slurm(head)
    slurm.states()
    slurm.cancel([3, 4])
    slurm.cancel([])
    assert head.commands == [["squeue", "--states=all", "--json"], ["scancel", "3", "4"]]
