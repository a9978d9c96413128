"""Whom decode may greet: only an engine that has confirmed the handle."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pd_connector.greetings import Greetings
from pd_connector.sidechannel import Question

HANDLE = {"remote_engine_id": "p", "remote_host": "h", "remote_port": 1, "tp_size": 1}
QUESTION = Question("h", 1, "lease", "d/r", "seal")


@dataclass
class Request:
    request_id: str
    kv_transfer_params: dict[str, Any] = field(default_factory=lambda: dict(HANDLE))


class Asked:
    def __init__(self) -> None:
        self.questions: list[Question] = []
        self.answers: list[Future[bool]] = []

    def __call__(self, question: Question) -> "Future[bool]":
        self.questions.append(question)
        self.answers.append(Future())
        return self.answers[-1]


def test_an_engine_is_greeted_when_it_has_confirmed_a_handle_and_then_at_once() -> None:
    asked = Asked()
    greetings, first = Greetings(asked), Request("first")
    assert not greetings.may_greet(first, QUESTION)
    assert asked.questions == [QUESTION._replace(reader="")], "it begins no read"
    assert greetings.confirmed() == []
    asked.answers[0].set_result(True)
    assert greetings.confirmed() == [first]
    assert greetings.confirmed() == []
    assert greetings.may_greet(Request("second"), QUESTION)
    assert len(asked.questions) == 1


def test_every_other_layout_or_place_of_a_confirmed_engine_is_asked_about() -> None:
    asked = Asked()
    greetings = Greetings(asked)
    greetings.may_greet(Request("first"), QUESTION)
    asked.answers[0].set_result(True)
    greetings.confirmed()
    for change in ({"tp_size": 3}, {"remote_host": "x"}, {"remote_port": 2}, {"remote_engine_id": "q"}):
        assert not greetings.may_greet(Request("lie", HANDLE | change), QUESTION)
        asked.answers[-1].set_result(False)
        assert greetings.confirmed() == []
        assert not greetings.may_greet(Request("again", HANDLE | change), QUESTION)


def test_a_question_that_failed_is_a_no() -> None:
    asked = Asked()
    greetings = Greetings(asked)
    greetings.may_greet(Request("first"), QUESTION)
    asked.answers[0].set_exception(OSError("gone"))
    assert greetings.confirmed() == []


def test_a_request_that_has_ended_meanwhile_is_not_greeted_for() -> None:
    asked = Asked()
    greetings = Greetings(asked)
    greetings.may_greet(Request("first"), QUESTION)
    greetings.forget("first")
    asked.answers[0].set_result(True)
    assert greetings.confirmed() == []
