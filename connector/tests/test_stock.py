"""What vLLM 0.29's own NIXL connector does with each fault that this one is for, and what this one does.

Every scenario uses nothing but vLLM's HTTP interface and runs on both: on engines without our plugin, where
the fault must show, and on ours, where it must not. So a test here fails as well when the fault is gone. The
tests of one kind share two engines and run in this order; those that end an engine come last.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import engines
import pytest
from conftest import ROLES, Pair, start_engine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not metadata.version("vllm").startswith("0.29."), reason="these are the faults of vLLM 0.29"
    ),
]
BLOCKS = 66
"""Of decode's cache, each of 32 tokens."""
TTL = 20
"""Seconds for which decode keeps a turn's blocks."""
PATIENCE = 10
"""Seconds after which an answer is not waited for; vLLM takes an engine for dead after five."""
SPIN = 0.15
"""Of a core: more is no rest."""


@dataclass
class Both(Pair):
    """A pair of engines with our plugin, or without."""

    kind: str = ""
    folder: Path = Path()
    stack: contextlib.ExitStack | None = None

    @property
    def stock(self) -> bool:
        return self.kind == "stock"

    def conversation(self, seed: int, length: int = 150, **more: Any) -> tuple[list[int], dict[str, Any]]:
        """Its tokens after one turn, and decode's handle."""
        prompt = engines.words(length, seed)
        _, answer = self.turn(prompt, 20, **more)
        return prompt + answer["choices"][0]["token_ids"], answer["kv_transfer_params"]

    @staticmethod
    def answer(engine: engines.Engine, prompt: list[int], kv: dict[str, Any]) -> Any:
        """One token, as `produced`; None where none comes."""
        try:
            status, text = engine.post("/v1/completions", engines.completion(prompt, 1, kv), PATIENCE)
        except TimeoutError:
            return None
        assert status == 200, text
        return engines.produced(json.loads(text))

    def restart(self, role: str, model: Path) -> None:
        """At the same ports, dead or alive before."""
        assert self.stack is not None
        old: engines.Engine = getattr(self, role)
        with contextlib.suppress(ProcessLookupError):
            old.kill()
        folder = self.folder / f"{role}-again"
        folder.mkdir()
        started = start(role, model, folder, self.kind, self.stack, (old.port, old.side_port))
        engines.wait_ready(started)
        engines.warm_up(started)
        setattr(self, role, started)

    def bytes_read(self) -> float:
        """By prefill."""
        return self.prefill.metric("vllm:nixl_bytes_transferred_sum")


@pytest.fixture(scope="module", params=["stock", "ours"])
def both(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp(request.param)
    with contextlib.ExitStack() as stack:
        started = [start(role, model, folder, request.param, stack) for role in ROLES]
        for one in started:
            engines.wait_ready(one)
            assert ("pd-connector" in one.text()) == (request.param == "ours")
            engines.warm_up(one)
        yield Both(*started, kind=request.param, folder=folder, stack=stack)


def start(
    role: str,
    model: Path,
    folder: Path,
    kind: str,
    stack: contextlib.ExitStack,
    ports: tuple[int, int] | None = None,
) -> engines.Engine:
    options = ("--num-gpu-blocks-override", str(BLOCKS)) if role == "decode" else ()
    return stack.enter_context(
        start_engine(role, model, folder, options, ports, stock=kind == "stock", decoder_kv_blocks_ttl=TTL)
    )


def begin(step: Any) -> "Future[Any]":
    thread = ThreadPoolExecutor(1)
    future = thread.submit(step)
    thread.shutdown(wait=False)
    return future


def test_a_request_with_any_parameter(both: Both) -> None:
    """L1: its blocks are kept, though nobody can ever come for them."""
    assert both.decode.kv_used() == 0
    both.decode.complete(engines.words(40, 1), 4, {"foo": 1})
    time.sleep(1)
    assert (both.decode.kv_used() > 0) == both.stock


def test_a_cache_full_of_kept_turns(both: Both) -> None:
    """A plain request waits until the time of the first of them is over."""
    kept_at = time.monotonic()
    for seed in range(3):
        both.conversation(10 + seed, 560)
    assert both.decode.kv_used() > 0.75
    prompt = engines.words(1900, 20)
    answer = begin(lambda: both.decode.complete(prompt, 2))
    with contextlib.suppress(TimeoutError):
        answer.result(kept_at + TTL - 1 - time.monotonic())
    assert answer.done() == (not both.stock)
    assert both.decode.metric("vllm:num_requests_waiting{") == both.stock
    assert engines.produced(answer.result(2 * TTL)) == both.recompute(prompt, 2)


def test_the_blocks_of_a_request_with_any_parameter_stay(both: Both) -> None:
    """L1: also when the time of all else is over, as it is here; on ours the plain request took the rest."""
    engines.eventually(lambda: both.decode.kv_used() * BLOCKS < 3, "the kept turns have ended")
    time.sleep(1)
    assert (both.decode.kv_used() > 0) == both.stock


def test_an_edited_history(both: Both) -> None:
    """U1: the tokens are wrong. U3: so are those of a later plain request, out of the prefix cache."""
    tokens, handle = both.conversation(30)
    edited = [*tokens[:100], tokens[100] ^ 1, *tokens[101:], *engines.words(30, 31)]
    both.forget_prefix()
    expected = both.recompute(edited, 6)
    _, answer = both.turn(edited, 6, handle)
    plain = both.prefill.complete(edited, 6)
    assert (engines.produced(answer) == expected) == (not both.stock)
    assert (engines.produced(plain) == expected) == (not both.stock)


def test_a_prompt_that_is_shorter_than_the_history(both: Both) -> None:
    """U2: the wrong blocks are taken for it."""
    tokens, handle = both.conversation(40)
    both.forget_prefix()
    shorter = tokens[:100]
    expected = both.recompute(shorter, 6)
    _, answer = both.turn(shorter, 6, handle)
    assert (engines.produced(answer) == expected) == (not both.stock)


def test_another_cache_salt(both: Both) -> None:
    """U6: one tenant reads what another one's salt protects."""
    tokens, handle = both.conversation(50, cache_salt="one")
    before = both.bytes_read()
    both.prefill.complete([*tokens, 300], 1, {**handle, **engines.FIRST_TURN}, cache_salt="two")
    time.sleep(2)
    assert (both.bytes_read() > before) == both.stock


def test_a_stream(both: Both) -> None:
    """It ends without the handle."""
    prompt = engines.words(150, 60)
    handle = both.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
    status, text = both.decode.post("/v1/completions", engines.completion(prompt, 20, handle, stream=True))
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    assert ('"kv_transfer_params":{' in text) == (not both.stock)


def test_an_engine_that_only_holds_blocks(both: Both) -> None:
    """It spins."""
    both.conversation(70)
    time.sleep(2)
    before, since = cpu_seconds(both.decode), time.monotonic()
    time.sleep(4)
    share = (cpu_seconds(both.decode) - before) / (time.monotonic() - since)
    assert (share > SPIN) == both.stock


def cpu_seconds(engine: engines.Engine) -> float:
    """Of all processes of its group."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == engine.process.pid:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_decode_is_restarted_under_its_old_name(both: Both, model: Path) -> None:
    """E1: prefill reads from it no more; that it answers is luck."""
    both.conversation(80)
    both.restart("decode", model)
    tokens, handle = both.conversation(81)
    before = both.bytes_read()
    prompt = [*tokens, *engines.words(40, 82)]
    expected = both.recompute(prompt, 1)
    first = both.answer(both.prefill, prompt, {**handle, **engines.FIRST_TURN})
    assert first == expected or (both.stock and first is None)
    time.sleep(2)
    assert (both.bytes_read() > before) == (not both.stock)


def test_a_read_from_a_dead_engine(both: Both) -> None:
    """H1: the request waits for ever, also when its client has gone."""
    prompt = engines.words(150, 90)
    _, handle = both.conversation(91)
    ghost = {"remote_engine_id": "ghost", "remote_port": engines.free_port()}
    before = both.prefill.metric("vllm:num_requests_waiting{")
    answer = both.answer(both.prefill, prompt, {**handle, **ghost, **engines.FIRST_TURN})
    assert answer == (None if both.stock else both.recompute(prompt, 1))
    assert both.prefill.metric("vllm:num_requests_waiting{") - before == both.stock


def test_a_handle_with_fewer_blocks_than_tokens(both: Both) -> None:
    """C2: it ends prefill."""
    _, handle = both.conversation(100)
    cut = {name: value for name, value in handle.items() if name != "pd_blocks"}
    cut |= {"remote_block_ids": [[1, 2]], "remote_num_tokens": 160}
    body = engines.completion(engines.words(200, 101), 1, {**cut, **engines.FIRST_TURN})
    status, _ = both.prefill.post("/v1/completions", body)
    assert (status == 200) == (not both.stock)
    assert both.prefill.healthy() == (not both.stock)


def test_a_handle_without_blocks(both: Both) -> None:
    """C1: it ends decode."""
    body = engines.completion(engines.words(150, 110), 4, {"do_remote_prefill": True})
    status, _ = both.decode.post("/v1/completions", body)
    assert (status == 200) == (not both.stock)
    assert both.decode.healthy() == (not both.stock)


def test_parameters_that_nest_deeply(both: Both, model: Path) -> None:
    """They end an engine of either role, which pickles them for its worker."""
    if both.stock:
        both.restart("prefill", model)
    body = json.dumps(engines.completion(engines.words(40, 120), 1, {"foo": "DEEP"}))
    deep = body.replace('"DEEP"', "[" * 500 + "]" * 500)
    status, _ = both.prefill.post_text("/v1/completions", deep)
    assert status == (500 if both.stock else 400)
    assert both.prefill.healthy() == (not both.stock)
