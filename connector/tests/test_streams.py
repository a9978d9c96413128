"""Real engines: the last chunk of a stream carries the handle, and nothing else of any stream changes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engines
import pytest
from conftest import Pair

from pd_connector.blockids import unpack

pytestmark = pytest.mark.engine

TOOL = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "look",
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream_options": {"include_usage": True}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {}),
    "chat-usage": (CHAT, USAGE),
    "chat-running-usage": (CHAT, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "chat-tool": (CHAT, {**TOOL, "max_tokens": 40, "ignore_eos": False}),
    "chat-logprobs": (CHAT, {"logprobs": True, "top_logprobs": 2}),
    "chat-two-choices": (CHAT, {"n": 2, "temperature": 0.7, "seed": 1}),
    "completions": (COMPLETIONS, {}),
    "completions-usage": (COMPLETIONS, USAGE),
    "completions-logprobs": (COMPLETIONS, {"logprobs": 2}),
}


def body(path: str, more: dict[str, Any]) -> dict[str, Any]:
    text = "def main(): import os; return os.path " * 4
    ask = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    base = {"model": "tiny", "temperature": 0, "ignore_eos": True, "max_tokens": 6, "stream": True}
    return {**base, **ask, **more}


def normal(stream: str) -> str:
    """Without what differs between any two runs of one engine."""
    stream = re.sub(r'"created":\d+', '"created":0', stream)
    # The fingerprint's last part is a hash of the engine's own configuration.
    stream = re.sub(r'("system_fingerprint":"[^"]+)-\w+"', r'\1"', stream)
    stream = re.sub(r"chatcmpl-tool-\w+|call_\w+", "tool-id", stream)
    # Two choices reach the stream in whichever order the engine's step has them.
    return "\n\n".join(sorted(stream.split("\n\n"), key=lambda chunk: '"index":1,"delta"' in chunk))


def chunks(stream: str) -> list[str]:
    events = stream.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return events[:-2]


@pytest.fixture(scope="module")
def stock(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engines.Engine]:
    """An engine that loads no plugin."""
    folder = tmp_path_factory.mktemp("stock")
    with engines.engine("stock", model, 0, folder, environ={"VLLM_PLUGINS": ""}) as started:
        assert "pd-connector" not in started.text()
        yield started


@pytest.mark.parametrize("case", CASES)
def test_stream_without_parameters_is_the_stock_engines(pair: Pair, stock: engines.Engine, case: str) -> None:
    path, more = CASES[case]
    ours, theirs = (engine.post(path, body(path, more)) for engine in (pair.decode, stock))
    assert ours[0] == theirs[0] == 200
    assert normal(ours[1]) == normal(theirs[1])


@pytest.mark.parametrize("case", CASES)
def test_last_chunk_carries_the_handle_and_the_rest_is_stock(
    pair: Pair, stock: engines.Engine, case: str
) -> None:
    path, more = CASES[case]
    request = body(path, more)
    status, stream = pair.decode.post(path, {**request, "kv_transfer_params": {"pd_retain": True}})
    assert status == 200
    found = chunks(stream)
    assert not any("kv_transfer_params" in chunk for chunk in found[:-1])
    last = json.loads(found[-1].removeprefix("data: "))
    assert list(last)[-1] == "kv_transfer_params"
    handle = last["kv_transfer_params"]
    assert handle["do_remote_decode"] is True
    assert handle["remote_engine_id"].startswith("decode-test+")
    assert handle["remote_block_ids"] == [[]]
    assert handle["remote_num_tokens"] == 0
    assert handle["pd_proof"]["tokens"] == 32 * len(unpack(handle["pd_blocks"][0]))
    member = ',"kv_transfer_params":' + json.dumps(handle, separators=(",", ":"))
    assert normal(stream.replace(member, "")) == normal(stock.post(path, request)[1])


def test_prefills_stream_carries_the_handle_for_decode(pair: Pair) -> None:
    request = {**body(CHAT, {"max_tokens": 1}), "kv_transfer_params": engines.FIRST_TURN}
    _, stream = pair.prefill.post(CHAT, request)
    handle = json.loads(chunks(stream)[-1].removeprefix("data: "))["kv_transfer_params"]
    assert handle["do_remote_prefill"] is True
    status, answer = pair.decode.post(CHAT, {**body(CHAT, {}), "kv_transfer_params": handle})
    assert status == 200
    assert "kv_transfer_params" in chunks(answer)[-1]


def test_several_prompts_are_left_alone(pair: Pair) -> None:
    request = {**body(COMPLETIONS, {}), "prompt": ["def main(): " * 20, "class A: pass " * 20]}
    status, stream = pair.prefill.post(COMPLETIONS, {**request, "kv_transfer_params": engines.FIRST_TURN})
    assert status == 200
    assert "kv_transfer_params" not in stream


def test_an_error_is_the_stock_engines(pair: Pair, stock: engines.Engine) -> None:
    request = body(COMPLETIONS, {"max_tokens": 999_999})
    ours = pair.decode.post(COMPLETIONS, {**request, "kv_transfer_params": engines.FIRST_TURN})
    assert ours == stock.post(COMPLETIONS, request)
    assert ours[0] == 400


def test_reply_too_short_for_a_block_has_no_handle_and_keeps_nothing(pair: Pair) -> None:
    held = pair.decode.kv_used()
    answer = pair.decode.complete([300] * 10, 4, {"pd_retain": True})
    assert answer["kv_transfer_params"] is None
    engines.eventually(lambda: pair.decode.kv_used() <= held, "no block of the short request is kept")


def test_client_that_leaves_ends_the_request(pair: Pair) -> None:
    held = pair.decode.kv_used()
    request = {**body(COMPLETIONS, {"max_tokens": 1800}), "kv_transfer_params": {"pd_retain": True}}
    with pair.decode.open(COMPLETIONS, json.dumps(request)) as stream:
        assert stream.readline().startswith(b"data: {")
        assert pair.decode.metric("vllm:num_requests_running") == 1
    engines.eventually(lambda: pair.decode.metric("vllm:num_requests_running") == 0, "the request is aborted")
    # A request that ran to its end would have kept its blocks.
    engines.eventually(lambda: pair.decode.kv_used() <= held, "no block is kept")
