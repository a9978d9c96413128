"""A router of its own for each test, before one pair of fake engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.served import Router, run_router
from toolkit.testing.fake_engine import FakeEngine, serve_engine

Serve = Callable[..., Router]


@dataclass(frozen=True)
class Pair:
    prefill: FakeEngine
    decode: FakeEngine
    urls: tuple[str, str]


@pytest.fixture(scope="session")
def _whole_pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        engines = FakeEngine("prefill", "P"), FakeEngine("decode", "D")
        first, second = (stack.enter_context(serve_engine(engine)) for engine in engines)
        yield Pair(*engines, (first, second))


@pytest.fixture
def pair(_whole_pair: Pair) -> Pair:
    """One prefill and one decode engine."""
    _whole_pair.prefill.reset()
    _whole_pair.decode.reset()
    return _whole_pair


@pytest.fixture
def serve(pair: Pair, tmp_path: Path) -> Iterator[Serve]:
    """A router before `pair` with settings of its own: `serve(**settings)`."""
    with ExitStack() as stack:
        prefill, decode = pair.urls
        yield lambda **settings: stack.enter_context(
            run_router([prefill], [decode], tmp_path / "access.log", **settings)
        )
