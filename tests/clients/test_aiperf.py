"""aiperf as it comes from PyPI: the later turns of its conversations are read back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.aiperf import CONVERSATIONS, TURNS, installed, profile
from tests.clients.conftest import Serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REQUESTS = CONVERSATIONS * TURNS
# Its own header names the conversation; with another name for it, the history does.
RUNS = {
    "explicit": ("--endpoint-type", "chat", "--streaming"),
    "automatic": ("--endpoint-type", "responses", "--session-header", "X-Of-No-Meaning"),
}


@pytest.fixture(scope="module")
def command() -> Path:
    return installed()


@pytest.mark.parametrize("identity", list(RUNS))
def test_multi_turn_load_is_read_back(serve: Serve, command: Path, tmp_path: Path, identity: str) -> None:
    router = serve(path="readback")
    told = profile(command, router.url, tmp_path, *RUNS[identity])
    assert (told.completed, told.errors, told.tokens) == (REQUESTS, [], 4 * REQUESTS)
    lines = router.logged(REQUESTS)
    assert len(lines) == REQUESTS
    assert sum(f"identity={identity} " in line for line in lines) == REQUESTS
    assert sum(" path=prefill " in line for line in lines) == CONVERSATIONS
    read = [
        int(found[1]) for line in lines if (found := re.search(r"kv_read_tokens=(\d+).* readback=hit", line))
    ]
    assert len(read) == REQUESTS - CONVERSATIONS
    # A turn is at least 400 of the engine's tokens longer than the one before.
    assert sorted(read)[-CONVERSATIONS] > 1200
