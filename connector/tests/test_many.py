"""Real engines with small caches: far more conversations than fit, several at a time, and preemption."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import engines
import pytest
from conftest import ROLES, Pair, start_pair

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
CONVERSATIONS = 200
AT_ONCE = 3
BLOCKS = 66
"""Of 32 tokens: ten conversations of six blocks."""


@pytest.fixture(scope="module")
def small(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    options = dict.fromkeys(ROLES, ("--num-gpu-blocks-override", str(BLOCKS)))
    with start_pair(model, tmp_path_factory.mktemp("many"), options) as started:
        yield started


def test_two_hundred_conversations_over_a_cache_that_holds_ten(small: Pair) -> None:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        # Half come back at once, the others when their blocks are long gone.
        read = list(threads.map(lambda number: _conversation(small, number), range(CONVERSATIONS)))
        late = list(threads.map(lambda entry: entry(), [entry for entry in read if callable(entry)]))
    at_once = [tokens for tokens in read if not callable(tokens)]
    counts = small.decode.lease_counts()
    ended = sum(counts[name] for name in ("read", "released", "given_up", "expired"))
    assert counts["granted"] == ended + counts["held"] == 2 * CONVERSATIONS
    assert counts["given_up"] > CONVERSATIONS / 2
    assert all(tokens % 32 == 0 for tokens in (*at_once, *late))
    assert sum(tokens > 0 for tokens in at_once) > CONVERSATIONS / 4
    assert late.count(0) > CONVERSATIONS / 4
    for one in (small.prefill, small.decode):
        engines.eventually(lambda one=one: one.metric("vllm:num_requests_waiting") == 0, "nothing waits")
        assert one.healthy()


def _conversation(pair: Pair, number: int) -> Any:
    """The tokens that its second turn read; of every other one its second turn, still to be taken."""
    prompt = engines.words(150, number)
    _, answer = pair.turn(prompt, 12)
    history, handle = prompt + answer["choices"][0]["token_ids"], answer["kv_transfer_params"]
    if number % 2:
        return lambda: _second_turn(pair, number, history, handle)
    return _second_turn(pair, number, history, handle)


def _second_turn(pair: Pair, number: int, history: list[int], handle: dict[str, Any]) -> int:
    """Tokens that prefill read."""
    prompt = history + engines.words(20, 1000 + number)
    first, answer = pair.turn(prompt, 4, handle)
    plain = pair.decode.complete(prompt, 4, cache_salt=f"fresh {number}")
    assert answer["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    return int(first["kv_transfer_params"]["pd_read"])


def test_requests_that_read_and_are_preempted(small: Pair) -> None:
    """Prefill generates here itself, more than its cache holds."""
    talks = []
    for seed in range(5):
        prompt = engines.words(250, 5000 + seed)
        answer = small.decode.complete(prompt, 8, {"pd_retain": True})
        talks.append((prompt + answer["choices"][0]["token_ids"], answer["kv_transfer_params"]))
    small.forget_prefix()
    before = small.prefill.metric("vllm:num_preemptions_total")

    def turn(number: int) -> list[int]:
        prompt, handle = talks[number]
        answer = small.prefill.complete(prompt, 300, {**handle, **engines.FIRST_TURN})
        return answer["choices"][0]["token_ids"]

    with ThreadPoolExecutor(len(talks)) as threads:
        produced = list(threads.map(turn, range(len(talks))))
    assert small.prefill.metric("vllm:num_preemptions_total") > before
    assert f"read={256}" in small.prefill.text()
    for number, (prompt, _) in enumerate(talks):
        assert produced[number] == small.recompute(prompt, 300)[0]
    engines.eventually(lambda: small.prefill.metric("vllm:num_requests_waiting") == 0, "nothing waits")
