"""Real engines: one is killed and comes back where it was; the other serves on, and reads from it again."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engines
import pytest
from conftest import ROLES, Pair, start_engine

pytestmark = pytest.mark.engine
SOON = 5
"""Seconds within which the other engine must answer, on a machine that has nothing else to do."""


class Place:
    """Where an engine runs, however often it is started: its ports, its id and its folder."""

    def __init__(self, role: str, model: Path, folder: Path, stack: contextlib.ExitStack) -> None:
        self.role, self.model, self.folder, self.stack = role, model, folder, stack
        self.ports = (engines.free_port(), engines.free_port())
        self.starts = 0

    def start(self) -> engines.Engine:
        self.starts += 1
        folder = self.folder / f"{self.role}-{self.starts}"
        folder.mkdir()
        return self.stack.enter_context(start_engine(self.role, self.model, folder, ports=self.ports))


class Restarts:
    def __init__(self, model: Path, folder: Path, stack: contextlib.ExitStack) -> None:
        self.places = {role: Place(role, model, folder, stack) for role in ROLES}
        self.pair = Pair(*(place.start() for place in self.places.values()))
        for one in (self.pair.prefill, self.pair.decode):
            engines.wait_ready(one)
            engines.warm_up(one)

    def restart(self, role: str) -> None:
        started = self.places[role].start()
        engines.wait_ready(started)
        engines.warm_up(started)
        setattr(self.pair, role, started)

    def mend(self) -> None:
        """What an earlier test has left dead."""
        for role in ROLES:
            one: engines.Engine = getattr(self.pair, role)
            if not one.healthy():
                with contextlib.suppress(ProcessLookupError):
                    one.kill()
                self.restart(role)


@pytest.fixture(scope="module")
def places(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarts]:
    with contextlib.ExitStack() as stack:
        yield Restarts(model, tmp_path_factory.mktemp("restarts"), stack)


@pytest.fixture
def restarts(places: Restarts) -> Restarts:
    places.mend()
    return places


def soon(step: Any) -> Any:
    start = time.monotonic()
    answer = step()
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert time.monotonic() - start < SOON * busy
    return answer


def conversation(pair: Pair, seed: int) -> tuple[list[int], dict[str, Any]]:
    prompt = engines.words(150, seed)
    _, answer = pair.turn(prompt, 30)
    return prompt + answer["choices"][0]["token_ids"], answer["kv_transfer_params"]


def test_decode_is_killed_in_the_middle_of_reads_and_comes_back(restarts: Restarts) -> None:
    pair = restarts.pair
    talks = [conversation(pair, seed) for seed in range(6)]
    prompts = [[*tokens, *engines.words(20, 100 + seed)] for seed, (tokens, _) in enumerate(talks)]
    expected = [pair.recompute(prompt, 1) for prompt in prompts]
    pair.forget_prefix()
    first: dict[int, Any] = {}

    def turn(number: int) -> None:
        asked = {**talks[number][1], **engines.FIRST_TURN}
        first[number] = soon(lambda: pair.prefill.complete(prompts[number], 1, asked))

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    # Stopped first, so that no read is just being posted: NIXL may end in a segmentation fault there.
    os.killpg(pair.decode.process.pid, signal.SIGSTOP)
    time.sleep(0.5)
    pair.decode.kill()
    for thread in threads:
        thread.join()
    assert [engines.produced(first[number]) for number in range(6)] == expected

    restarts.restart("decode")
    # The first that decode's new start hears of prefill is a lie about its layout.
    true = pair.prefill.complete(prompts[0], 1, engines.FIRST_TURN)["kv_transfer_params"]
    asked = engines.completion(prompts[0], 4, {**true, "tp_size": 3})
    assert soon(lambda: pair.decode.post("/v1/completions", asked))[0] == 500
    pulled = soon(lambda: pair.decode.complete(prompts[0], 4, true))
    assert engines.produced(pulled) == pair.recompute(prompts[0], 4)
    # Handles of the engine's earlier life are of no use, and do no harm.
    late = soon(lambda: pair.turn([*prompts[0], *engines.words(9, 7)], 8, talks[0][1]))[1]
    assert engines.produced(late) == pair.recompute([*prompts[0], *engines.words(9, 7)], 8)
    tokens, handle = soon(lambda: conversation(pair, 50))
    pair.forget_prefix()
    prompt = [*tokens, *engines.words(20, 51)]
    # The first that prefill hears of the new start is a lie about its layout.
    forged = soon(lambda: pair.prefill.complete(prompt, 1, {**handle, "tp_size": 3, **engines.FIRST_TURN}))
    assert engines.produced(forged) == pair.recompute(prompt, 1)
    assert forged["kv_transfer_params"]["pd_read"] == 0
    pair.forget_prefix()
    expected_turn = pair.recompute(prompt, 8)
    answers = soon(lambda: pair.turn(prompt, 8, handle))
    assert answers[0]["kv_transfer_params"]["pd_read"] > 0
    assert engines.produced(answers[1]) == expected_turn


def test_prefill_is_killed_and_comes_back(restarts: Restarts) -> None:
    pair = restarts.pair
    tokens, handle = conversation(pair, 60)
    prompt = [*tokens, *engines.words(20, 61)]
    expected = pair.recompute(prompt, 8)
    of_prefill = pair.prefill.complete(engines.words(150, 62), 1, engines.FIRST_TURN)["kv_transfer_params"]
    pair.prefill.kill()
    assert engines.produced(soon(lambda: pair.decode.complete(prompt, 8))) == expected
    asked = engines.completion(engines.words(150, 62), 8, of_prefill)
    assert soon(lambda: pair.decode.post("/v1/completions", asked))[0] == 500

    restarts.restart("prefill")
    assert soon(lambda: pair.decode.post("/v1/completions", asked))[0] == 500
    answers = soon(lambda: pair.turn(prompt, 8, handle))
    assert answers[0]["kv_transfer_params"]["pd_read"] > 0
    assert engines.produced(answers[1]) == expected


def test_decode_that_hangs_is_taken_for_dead(restarts: Restarts) -> None:
    pair = restarts.pair
    tokens, handle = conversation(pair, 70)
    prompt = [*tokens, *engines.words(20, 71)]
    expected = pair.recompute(prompt, 1)
    pair.forget_prefix()
    os.killpg(pair.decode.process.pid, signal.SIGSTOP)
    try:
        first = soon(lambda: pair.prefill.complete(prompt, 1, {**handle, **engines.FIRST_TURN}))
    finally:
        os.killpg(pair.decode.process.pid, signal.SIGCONT)
    assert engines.produced(first) == expected
    assert first["kv_transfer_params"]["pd_read"] == 0
