"""Real engines: handles that are wrong in every way are answered, and the engines live on."""

import json
import time
import zlib
from typing import Any

import engines
import pytest
import zmq
from conftest import Pair

from pd_connector.blockids import pack, unpack

pytestmark = pytest.mark.engine


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> list[int]:
    return engines.words(150, zlib.crc32(request.node.name.encode()))


@pytest.fixture
def handle(pair: Pair, prompt: list[int]) -> dict[str, Any]:
    """Decode's handle of a prompt that prefill has never seen."""
    kept = pair.decode.complete(prompt, 40, {"pd_retain": True})["kv_transfer_params"]
    assert isinstance(kept, dict)
    return kept


def changed(handle: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """With these members replaced; None removes one."""
    return {name: value for name, value in {**handle, **change}.items() if value is not None}


WRONG: dict[str, dict[str, Any]] = {
    "no-blocks": {"remote_block_ids": None, "pd_blocks": None},
    "fewer-blocks": {"pd_blocks": [pack([1, 2])]},
    "fewer-blocks-listed": {"remote_block_ids": [[1, 2]], "pd_blocks": None},
    "more-blocks": {"pd_blocks": [pack(range(1, 60))]},
    "blocks-not-packed": {"pd_blocks": [[1, 2, 3]]},
    "blocks-cut-off": {"pd_blocks": [pack(range(1, 6))[:8]]},
    "blocks-without-end": {"pd_blocks": ["////////"]},
    "no-packed-blocks": {"pd_blocks": None},
    "blocks-of-text": {"remote_block_ids": ["a"], "pd_blocks": None},
    "blocks-not-nested": {"remote_block_ids": [1, 2, 3], "pd_blocks": None},
    "two-groups": {"remote_block_ids": [[1, 2, 3], [4, 5, 6]], "pd_blocks": None},
    "negative-block": {"remote_block_ids": [[-1, 2, 3, 4, 5]], "pd_blocks": None},
    "no-engine": {"remote_engine_id": None},
    "engine-number": {"remote_engine_id": 5},
    "no-request": {"remote_request_id": None},
    "no-port": {"remote_port": None},
    "port-text": {"remote_port": "x"},
    "port-too-large": {"remote_port": 70000},
    "tp-zero": {"tp_size": 0},
    "tp-odd": {"tp_size": 3},
    "tp-many": {"tp_size": 4096},
    "expiry-text": {"remote_blocks_expiry_time": "soon"},
    "tokens-text": {"remote_num_tokens": "many"},
    "proof-text": {"pd_proof": "x"},
    "proof-not-base64": {"pd_proof": {"format": 2, "block_size": 32, "tokens": 128, "digests": "*"}},
    "proof-too-long": {"pd_proof": {"format": 2, "block_size": 32, "tokens": 1 << 40, "digests": ""}},
    "block-size-zero": {"pd_proof": {"format": 2, "block_size": 0, "tokens": 128, "digests": ""}},
}


@pytest.mark.parametrize("case", WRONG)
def test_prefill_computes_what_a_wrong_handle_promised(
    pair: Pair, prompt: list[int], handle: dict[str, Any], case: str
) -> None:
    first = pair.prefill.complete(prompt, 1, {**changed(handle, WRONG[case]), **engines.FIRST_TURN})
    assert engines.produced(first) == pair.recompute(prompt, 1)
    assert pair.prefill.healthy()


LIES = ("tp-odd", "tp-many")
"""Well formed: only prefill can tell that they are not what it said."""


@pytest.mark.parametrize("case", [case for case in WRONG if case not in LIES])
def test_decode_computes_what_a_wrong_handle_promised(pair: Pair, prompt: list[int], case: str) -> None:
    handle = pair.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
    answer = pair.decode.complete(prompt, 4, changed(handle, WRONG[case]))
    assert engines.produced(answer) == pair.recompute(prompt, 4)
    assert pair.decode.healthy()


@pytest.mark.parametrize("case", LIES)
def test_decode_treats_a_lie_as_a_failed_pull(pair: Pair, prompt: list[int], case: str) -> None:
    """And learns nothing from it: the next true handle is pulled."""
    handle = pair.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
    status, text = pair.decode.post(
        "/v1/completions", engines.completion(prompt, 4, changed(handle, WRONG[case]))
    )
    assert status == 500, text
    assert engines.produced(pair.decode.complete(prompt, 4, handle)) == pair.recompute(prompt, 4)


@pytest.mark.parametrize(
    "handle",
    [
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "do_remote_decode": True},
        {"do_remote_decode": True, "_remote_blocks_processed": True},
        {"do_remote_prefill": "yes", "remote_block_ids": {}},
        {"foo": 1},
    ],
    ids=str,
)
def test_half_filled_handles(pair: Pair, prompt: list[int], handle: dict[str, Any]) -> None:
    for engine in (pair.prefill, pair.decode):
        assert engines.produced(engine.complete(prompt, 2, handle)) == pair.recompute(prompt, 2)


ODD_VALUES = {
    "deep-lists": "[" * 500 + "]" * 500,
    "deep-objects": '{"a":' * 700 + "1" + "}" * 700,
    "deeper-than-any-handle": "[" * 20 + "]" * 20,
    "no-unicode": r'"\ud800"',
    "name-without-unicode": r'{"\udfff": 1}',
    "long-integer": "9" * 40,
}
"""As they stand in the body: Python's own encoder makes only some of them."""


@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
@pytest.mark.parametrize("case", ODD_VALUES)
def test_values_that_cannot_reach_the_engine_are_refused(pair: Pair, path: str, case: str) -> None:
    """vLLM answers an empty 500 or, at some 500 levels, ends: the values travel on to its workers."""
    for engine in (pair.prefill, pair.decode):
        for member in ("foo", "pd_proof"):
            body = {"model": "tiny", "max_tokens": 2, "kv_transfer_params": {member: "HERE"}}
            body |= {
                "completions": {"prompt": "a b"},
                "chat/completions": {"messages": [{"role": "user", "content": "a b"}]},
                "responses": {"input": "a b"},
            }[path]
            text = json.dumps(body).replace('"HERE"', ODD_VALUES[case])
            status, answer = engine.post_text(f"/v1/{path}", text)
            assert status == 400, answer
            # vLLM from 0.32 on refuses long integers by itself.
            assert "kv_transfer_params" in answer or "extra_args" in answer
        assert engine.healthy()


def test_decode_gives_no_blocks_to_a_request_that_did_not_ask(pair: Pair, prompt: list[int]) -> None:
    held = pair.decode.kv_used()
    assert pair.decode.complete(prompt, 4, {"foo": 1})["kv_transfer_params"] is None
    engines.eventually(lambda: pair.decode.kv_used() <= held, "nothing is retained")


TOLD_SECONDS = 5
"""Less than prefill's `kv_lease_duration`, after which its blocks are free in any case."""


def test_decode_keeps_no_blocks_of_a_turn_that_nobody_comes_back_for(pair: Pair, prompt: list[int]) -> None:
    engines.eventually(lambda: pair.prefill.kv_used() == 0, "nothing is left of earlier requests")
    held = pair.decode.kv_used()
    handle = pair.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
    answer = pair.decode.complete(prompt, 40, {**handle, "pd_retain": False})
    assert engines.produced(answer) == pair.recompute(prompt, 40)
    assert answer["kv_transfer_params"] is None
    engines.eventually(lambda: pair.decode.kv_used() <= held, "nothing is retained")
    engines.eventually(lambda: pair.prefill.kv_used() == 0, "prefill was told", TOLD_SECONDS)


def test_prompt_logprobs_are_computed_whole(pair: Pair, prompt: list[int], handle: dict[str, Any]) -> None:
    """vLLM 0.29 ends in an overflow where part of such a prompt is pulled."""
    plain = pair.decode.complete(prompt, 4, cache_salt="plain", prompt_logprobs=1)
    expected = plain["choices"][0]["prompt_logprobs"]
    first = pair.prefill.complete(prompt, 1, engines.FIRST_TURN)
    pulled = pair.decode.complete(prompt, 4, first["kv_transfer_params"], prompt_logprobs=1)
    read = pair.prefill.complete(prompt, 4, {**handle, **engines.FIRST_TURN}, prompt_logprobs=1)
    for answer in (pulled, read):
        assert [set(t or ()) for t in answer["choices"][0]["prompt_logprobs"]] == [
            set(t or ()) for t in expected
        ]
        assert engines.produced(answer) == engines.produced(plain)
    assert pair.prefill.healthy()
    assert pair.decode.healthy()


def test_handle_of_another_prompt_is_not_taken_by_decode(pair: Pair, prompt: list[int]) -> None:
    engines.eventually(lambda: pair.prefill.kv_used() == 0, "nothing is left of earlier requests")
    handle = pair.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
    other = [prompt[0] ^ 1, *prompt[1:]]
    assert engines.produced(pair.decode.complete(other, 8, handle)) == pair.recompute(other, 8)
    engines.eventually(lambda: pair.prefill.kv_used() == 0, "prefill was told", TOLD_SECONDS)


def test_garbage_at_the_port_of_the_handshake(pair: Pair, prompt: list[int], handle: dict[str, Any]) -> None:
    """It would end vLLM's listener; then nobody could read from the engine any more."""
    with zmq.Context() as context:
        for engine in (pair.prefill, pair.decode):
            for message in (b"", b"\xc1\xff", b"\x93\xc4\x01a\x07\x07", b"\x05"):
                with context.socket(zmq.DEALER) as socket:
                    socket.setsockopt(zmq.LINGER, 1000)
                    socket.connect(f"tcp://127.0.0.1:{engine.side_port}")
                    socket.send_multipart((b"", message))
    time.sleep(1)
    # A pull that prefill did not grant would be a 500 here.
    first, answer = pair.turn([*prompt, 300], 4, handle)
    assert first["kv_transfer_params"]["pd_read"] > 0
    assert engines.produced(answer) == pair.recompute([*prompt, 300], 4)


DEAD = {"remote_engine_id": "ghost", "remote_port": 9}


def test_prefill_recomputes_when_decode_is_gone(
    pair: Pair, prompt: list[int], handle: dict[str, Any]
) -> None:
    first = pair.prefill.complete(prompt, 1, {**handle, **DEAD, **engines.FIRST_TURN})
    assert engines.produced(first) == pair.recompute(prompt, 1)
    assert first["kv_transfer_params"]["pd_read"] == 0, "what had to be computed again was not read"
    assert "readback" in pair.prefill.text()
    engines.eventually(lambda: pair.prefill.metric("vllm:num_requests_waiting") == 0, "nothing waits")


def test_prefill_recomputes_blocks_that_decode_let_go(
    pair: Pair, prompt: list[int], handle: dict[str, Any]
) -> None:
    assert pair.decode.leases("release", handle["pd_lease"])[handle["pd_lease"]]["ok"]
    first = pair.prefill.complete(prompt, 1, {**handle, **engines.FIRST_TURN})
    assert engines.produced(first) == pair.recompute(prompt, 1)
    assert first["kv_transfer_params"]["pd_read"] == 0


def test_prefill_recomputes_blocks_out_of_range(
    pair: Pair, prompt: list[int], handle: dict[str, Any]
) -> None:
    handle["pd_blocks"] = [pack([1_000_000 + i for i in unpack(handle["pd_blocks"][0])])]
    first = pair.prefill.complete(prompt, 1, {**handle, **engines.FIRST_TURN})
    assert engines.produced(first) == pair.recompute(prompt, 1)
    assert pair.prefill.healthy()


def test_decode_answers_an_error_when_prefill_is_gone(pair: Pair, prompt: list[int]) -> None:
    handle = pair.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
    status, text = pair.decode.post("/v1/completions", engines.completion(prompt, 4, {**handle, **DEAD}))
    assert status == 500, text
    assert pair.decode.healthy()


def test_prefill_keeps_nothing_for_later_turns(pair: Pair, prompt: list[int]) -> None:
    answer = pair.prefill.complete(prompt, 4, {"pd_retain": True})
    assert answer["kv_transfer_params"] is None
