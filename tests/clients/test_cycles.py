"""What a request was made of dies with it: Python searches all memory for cycles only once in a while."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator

import anthropic
import openai
import pytest

from tests.clients.conftest import Pair, Serve
from tests.clients.served import Router
from tests.clients.talks import ENDPOINTS, begin
from toolkit.testing.fake_engine import Fault

FAULTS = {
    "right": Fault(),
    "prefill answers 500": Fault(status=500),
    "prefill refuses": Fault(status=400),
    "prefill breaks": Fault(reset="answer"),
    "decode answers 500": Fault(status=500),
    "decode refuses": Fault(status=400),
    "decode breaks": Fault(reset="answer"),
    "decode breaks amid its answer": Fault(reset="stream"),
    "decode ends too soon": Fault(ends=b""),
    "decode tells an error": Fault(ends=b'data: {"error":{"message":"x","code":500}}\n\n', after_events=0),
}


@pytest.fixture
def cycles() -> Iterator[Callable[[], Counter[str]]]:
    """The kinds of the router's objects that only the search for cycles has found since."""
    gc.collect()
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def found() -> Counter[str]:
        gc.collect()
        kinds = [type(each) for each in gc.garbage]
        return Counter(kind.__qualname__ for kind in kinds if kind.__module__.startswith("toolkit.router"))

    yield found
    gc.set_debug(0)
    gc.garbage.clear()


def ask(router: Router, endpoint: str, stream: bool) -> None:
    with contextlib.suppress(openai.APIError, anthropic.APIError):
        begin(router, endpoint, stream).say("hello " * 100)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_no_way_to_end_leaves_cycles(
    serve: Serve, pair: Pair, cycles: Callable[[], Counter[str]], stream: bool
) -> None:
    router = serve(eject_after=1000)
    for ending, fault in FAULTS.items():
        (pair.prefill if ending.startswith("prefill") else pair.decode).fault = fault
        for endpoint in ENDPOINTS:
            ask(router, endpoint, stream)
        pair.prefill.reset()
        pair.decode.reset()
        assert (ending, cycles()) == (ending, {})


def test_a_client_that_leaves_leaves_no_cycle(
    serve: Serve, pair: Pair, cycles: Callable[[], Counter[str]]
) -> None:
    router = serve()
    pair.decode.fault = Fault(hang="stream")
    for _ in range(3):
        with router.openai().completions.create(model="tiny", prompt="x", stream=True) as stream:
            next(iter(stream))
    assert sum("client-gone" in line for line in router.logged(3)) == 3
    assert cycles() == {}
