"""What each engine is sent of a request, and what is read of its answer."""

import pytest

from toolkit.router.request.bodies import (
    MISS_PARAMS,
    decode_body,
    kv_read_tokens,
    prefill_body,
    prompt_tokens,
    transfer_params,
)
from toolkit.router.request.dialects import Endpoint

CHAT, COMPLETIONS, RESPONSES, MESSAGES = Endpoint
HELLO = [{"role": "user", "content": "é"}, {"role": "assistant", "content": '"\\'}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
HANDLE = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[]],
    "remote_engine_id": "d",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 1,
    "pd_blocks": ["AAAA"],
    "pd_proof": {"format": 2, "tokens": 32},
    "future_member": {"kept": True},
}
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[]], "remote_host": "side-channel"}

# What shapes the prompt or is harmless, then what concerns the generation only.
LEGS = {
    CHAT: (
        {
            "model": "m",
            "messages": HELLO,
            "tools": TOOLS,
            "tool_choice": "required",
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
            "documents": [{"title": "t", "text": "d"}],
            "chat_template_kwargs": {"enable_thinking": False},
            "reasoning_effort": "low",
            "add_generation_prompt": True,
            "continue_final_message": False,
            "truncate_prompt_tokens": 500,
            "cache_salt": "s",
            "prompt_cache_key": "k",
            "mm_processor_kwargs": {"a": 1},
            "n": 1,
            "temperature": 0.3,
            "seed": 7,
            "logit_bias": {"5": 1.5},
            "store": True,
            "future_member": [1],
        },
        {
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 500,
            "max_completion_tokens": 500,
            "min_tokens": 20,
            "stop": ["x"],
            "logprobs": True,
            "top_logprobs": 5,
            "logprob_token_ids": [1],
            "prompt_logprobs": None,
            "structured_outputs": {"regex": "a+"},
            "return_token_ids": True,
            "return_prompt_text": True,
            "echo": False,
        },
        {"stream": False, "max_tokens": 1},
    ),
    COMPLETIONS: (
        {
            "model": "m",
            "prompt": [1, 2, 3],
            "n": 1,
            "best_of": 1,
            "add_special_tokens": False,
            "suffix": None,
        },
        {
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 0,
            "min_tokens": 20,
            "stop": "x",
            "logprobs": 5,
            "echo": False,
            "response_format": {"type": "json_object"},
            "structured_outputs": {"choice": ["a"]},
            "return_token_ids": True,
        },
        {"stream": False, "max_tokens": 1},
    ),
    RESPONSES: (
        {
            "model": "m",
            "input": HELLO,
            "instructions": "be é",
            "tools": TOOLS,
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_object"}},
            "reasoning": {"effort": "low"},
            "truncation": "disabled",
            "previous_response_id": None,
            "metadata": {"a": "b"},
        },
        {
            "stream": True,
            "store": True,
            "max_output_tokens": 500,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 3,
            "stop": ["x"],
            "enable_response_messages": True,
            "structured_outputs": {"choice": ["a"]},
        },
        {"stream": False, "store": False, "max_output_tokens": 1},
    ),
    MESSAGES: (
        {
            "model": "m",
            "messages": HELLO,
            "system": [{"type": "text", "text": "be é"}],
            "tools": [{"name": "f", "input_schema": {}}],
            "tool_choice": {"type": "any"},
            "output_config": {"effort": "low"},
            "metadata": {"user_id": "u"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
        {"stream": True, "max_tokens": 500, "stop_sequences": ["x"]},
        {"stream": False, "max_tokens": 1},
    ),
}
every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))


def whole(endpoint, *, stream=True):
    kept, generation, _ = LEGS[endpoint]
    return {**kept, **generation, "stream": stream}


@every_endpoint
def test_prefill_is_asked_for_the_same_prompt_one_token_and_nothing_else(read, sent, endpoint):
    kept, generation, one_token = LEGS[endpoint]
    found = read(endpoint, {"conversation_id": "c", **generation, **kept})
    assert found.transferable
    assert sent(prefill_body(found, None)) == {**kept, **one_token, "kv_transfer_params": dict(MISS_PARAMS)}
    assert sent(prefill_body(found, HANDLE))["kv_transfer_params"] == HANDLE


@every_endpoint
def test_a_short_request_gets_its_limits_too(read, sent, endpoint):
    assert sent(prefill_body(read(endpoint, {}), None)) == {
        **LEGS[endpoint][2],
        "kv_transfer_params": dict(MISS_PARAMS),
    }
    assert sent(decode_body(read(endpoint, {}), None, retain=False)) == {}


@every_endpoint
def test_decode_gets_the_clients_request(read, sent, endpoint):
    body = whole(endpoint)
    found = read(endpoint, {"conversation_id": "c", **body})
    assert sent(decode_body(found, None, retain=False)) == body
    assert sent(decode_body(found, PARAMS, retain=False)) == {
        **body,
        "kv_transfer_params": {**PARAMS, "pd_retain": False},
    }


@every_endpoint
@pytest.mark.parametrize("stream", [True, False])
def test_blocks_are_kept_where_the_answer_can_name_them(read, sent, endpoint, stream):
    found = read(endpoint, whole(endpoint, stream=stream))
    named = not (stream and endpoint is MESSAGES)
    pulled = sent(decode_body(found, PARAMS, retain=True))["kv_transfer_params"]
    assert pulled == (PARAMS if named else {**PARAMS, "pd_retain": False})
    alone = sent(decode_body(found, None, retain=True))
    assert alone.get("kv_transfer_params") == ({"pd_retain": True} if named else None)


@pytest.mark.parametrize("body", [{"n": 2}, {"prompt": ["a", "b"]}, {"prompt_logprobs": 1}])
def test_a_request_of_several_sequences_keeps_nothing(read, sent, body):
    found = read(COMPLETIONS, {"prompt": "a", **body})
    assert "kv_transfer_params" not in sent(decode_body(found, None, retain=True))


@every_endpoint
def test_the_tokens_of_prefill_go_where_the_engine_takes_them(read, sent, endpoint):
    params = {**PARAMS, "prompt_token_ids": [1, 2]}
    got = sent(decode_body(read(endpoint, {}), params, retain=True))["kv_transfer_params"]
    assert ("prompt_token_ids" in got) == (endpoint is not COMPLETIONS)
    assert params["prompt_token_ids"] == [1, 2]


@every_endpoint
def test_what_is_large_is_one_object_in_both_bodies(read, endpoint):
    found = read(endpoint, whole(endpoint))
    prefill, decode = prefill_body(found, HANDLE), decode_body(found, PARAMS, retain=True)
    assert found.large
    for text in found.large.values():
        assert any(piece is text for piece in prefill)
        assert any(piece is text for piece in decode)


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        dict(MISS_PARAMS),
        HANDLE,
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "remote_block_ids": []},
        {"do_remote_prefill": 1, "remote_block_ids": [[1]]},
        "x",
        [],
    ],
)
def test_prefills_own_leg_or_nothing_readable_is_withheld_from_decode(params):
    assert transfer_params({"kv_transfer_params": params}) is None
    assert transfer_params({}) is None


def test_prefills_parameters_are_passed_on_as_they_are():
    assert transfer_params({"kv_transfer_params": PARAMS}) is PARAMS


@pytest.mark.parametrize(
    ("params", "tokens"),
    [({"pd_read": 32}, 32), ({"pd_read": 0}, 0), ({}, None), (None, None), ({"pd_read": True}, None)],
)
def test_what_prefill_read(params, tokens):
    assert kv_read_tokens(params) == tokens


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 37, "completion_tokens": 1}, 37),
        ({"input_tokens": 37, "input_tokens_details": {"cached_tokens": 5}}, 37),
        # Of /v1/messages what was found in the cache is not among the input tokens.
        ({"input_tokens": 7, "cache_read_input_tokens": 30, "output_tokens": 1}, 37),
        ({"input_tokens": 7, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 10}, 37),
        ({"input_tokens": 37, "cache_read_input_tokens": None}, 37),
        ({"prompt_tokens": "37"}, None),
        ({"prompt_tokens": -5}, None),
        ({"prompt_tokens": 1 << 63}, None),
        ({"prompt_tokens": True}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_the_length_of_the_prompt(usage, tokens):
    assert prompt_tokens({"usage": usage}) == tokens
