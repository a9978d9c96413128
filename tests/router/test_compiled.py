"""What only the compiled form can be asked: `pytest --compiled`."""

import inspect

import pytest

from toolkit.router.memory.handle import Handle
from toolkit.router.memory.records import Entry, Held
from toolkit.router.observe.record import RequestRecord
from toolkit.router.paths.choice import Choice, Turn
from toolkit.router.request.facts import Facts
from toolkit.router.request.identity import Keys, Scope
from toolkit.router.wire.client import Answer
from toolkit.router.wire.reader import Request


@pytest.fixture(autouse=True)
def compiled_only(request):
    if not request.config.getoption("--compiled"):
        pytest.skip("of the compiled form only")


@pytest.mark.parametrize(
    "made", [Answer, Choice, Entry, Facts, Handle, Held, Keys, Request, RequestRecord, Scope, Turn]
)
def test_what_every_request_makes_is_made_by_compiled_code(made):
    assert not inspect.isfunction(made.__init__), "dataclass has made it when the module was loaded"


def test_what_an_ended_request_runs_through_is_compiled():
    """A module that a request runs through and that is left out costs, and nothing else tells."""
    from toolkit.router.observe import accesslog, ledger, metrics, recent, record

    interpreted = [
        each.__name__
        for each in (accesslog, ledger, metrics, recent, record)
        if each.__file__.endswith(".py")
    ]
    assert interpreted == []
