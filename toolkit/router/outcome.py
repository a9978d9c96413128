"""How one leg's attempt can end other than well, and what the client is told of it."""

from __future__ import annotations

from toolkit.router.fleet.legs import Leg
from toolkit.router.request.refusal import Refusal
from toolkit.router.wire.client import Answer, EngineFailed

OF_ENGINES = (502, 504)
"""The statuses of refusals that only an engine's failure leads to; see `status_of`."""


class PassOn(Exception):
    """An engine's own answer is the client's: it refused the request, or failed and nobody else is left."""

    def __init__(self, leg: Leg, answer: Answer) -> None:
        super().__init__(f"{leg} answered {answer.status}")
        self.leg = leg
        self.answer = answer


class AnsweredBadly(EngineFailed):
    """The engine answered with a status that is neither a result nor a refusal. Another may do better."""

    def __init__(self, leg: Leg, answer: Answer) -> None:
        super().__init__(leg, f"answered {answer.status}", sent=True, status=answer.status)
        self.answer = answer


def unanswered(failure: EngineFailed) -> Refusal | PassOn:
    """What ends the request: the engine's own error where it gave one, else ours, which names the role and
    the reason; the engine's address is for the log, not for the client."""
    if isinstance(failure, AnsweredBadly) and failure.answer.status >= 500:
        return PassOn(failure.leg, failure.answer)
    return Refusal(status_of(failure), f"The {failure.leg.role} engine {failure.why}.")


def status_of(failure: EngineFailed) -> int:
    """What a failure is to a client that gets an error of ours for it."""
    return 504 if failure.timed_out else 502
