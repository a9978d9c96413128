"""Facts and policy: what a request is, and what each engine is sent."""

import orjson
import pytest
from starlette.datastructures import Headers

from toolkit.router import policy
from toolkit.router.facts import read_request
from toolkit.router.policy import MISS_PARAMS, Path
from toolkit.router.refusal import Refusal

CHAT = {"model": "m", "messages": [{"role": "user", "content": "é"}]}
HANDLE = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[1]],
    "remote_engine_id": "d",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 1,
    "future_member": {"kept": True},
}


def facts(body, endpoint="chat", **headers):
    named = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return read_request(endpoint, orjson.dumps(body), named)


def sent(raw):
    return orjson.loads(raw)


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({"conversation_id": "b"}, {"x_conversation_id": "h"}, "b"),
        ({}, {"x_conversation_id": "c", "x_session_id": "s", "x_correlation_id": "o"}, "c"),
        ({}, {"x_session_id": "s", "x_correlation_id": "o"}, "s"),
        ({"prompt_cache_key": "k"}, {"x_correlation_id": "o"}, "o"),
        ({"prompt_cache_key": "k"}, {}, "k"),
        ({"prompt_cache_key": 5}, {}, None),
        ({}, {"x_session_id": ""}, None),
        ({}, {}, None),
    ],
)
def test_the_conversation_is_named_in_this_order(body, headers, expected):
    found = facts({**CHAT, **body}, **headers)
    assert found.conversation == expected
    assert (found.key is None) == (expected is None)


@pytest.mark.parametrize("bad", ["", "x" * 257, 5, None, ["a"], {"a": 1}])
def test_a_bad_conversation_id_is_refused(bad):
    with pytest.raises(Refusal) as refusal:
        facts({**CHAT, "conversation_id": bad})
    assert (refusal.value.status, refusal.value.param) == (400, "conversation_id")


def test_another_credential_model_salt_or_endpoint_is_another_conversation():
    body = {**CHAT, "conversation_id": "same"}
    variants = [
        facts(body),
        facts(body, authorization="Bearer a"),
        facts(body, authorization="Bearer b"),
        facts(body, x_api_key="a"),
        facts({**body, "model": "n"}),
        facts({**body, "cache_salt": "s"}),
        facts({**body, "prompt": "p"}, endpoint="completions"),
        facts({**body, "conversation_id": "other"}),
    ]
    assert len({found.key for found in variants}) == len(variants)
    assert facts(body, authorization="Bearer a").key == variants[1].key


@pytest.mark.parametrize("value", [{}, {"do_remote_prefill": True}, [], "x", 1, False])
def test_clients_do_not_set_kv_metadata(value):
    for body in (
        {**CHAT, "kv_transfer_params": value},
        {**CHAT, "vllm_xargs": {"kv_transfer_params": value}},
    ):
        with pytest.raises(Refusal) as refusal:
            facts(body)
        assert refusal.value.status == 400


def test_a_null_from_a_client_library_is_absent():
    found = facts({**CHAT, "kv_transfer_params": None})
    assert "kv_transfer_params" not in sent(policy.decode_body(found, None))


@pytest.mark.parametrize(
    ("endpoint", "members", "transferable"),
    [
        ("chat", {}, True),
        ("chat", {"n": 1}, True),
        ("chat", {"n": None}, True),
        ("chat", {"n": 2}, False),
        ("chat", {"use_beam_search": True}, False),
        ("completions", {"prompt": "a"}, True),
        ("completions", {"prompt": ["a"]}, True),
        ("completions", {"prompt": [1, 2, 3]}, True),
        ("completions", {"prompt": [[1, 2]]}, True),
        ("completions", {"prompt": ["a", "b"]}, False),
        ("completions", {"prompt": [[1], [2]]}, False),
        ("completions", {"prompt": "a", "n": 3}, False),
        ("completions", {"prompt": "a", "best_of": 2}, False),
        ("completions", {"prompt": "a", "echo": True}, True),
        ("completions", {"prompt": "a", "logprobs": 1}, True),
        ("completions", {"prompt": "a", "echo": True, "logprobs": 0}, False),
        ("completions", {"prompt": "a", "prompt_logprobs": 0}, False),
        ("completions", {"prompt": "a", "prompt_logprobs": None}, True),
        ("chat", {"prompt_logprobs": 1}, False),
        ("chat", {"logprobs": True, "top_logprobs": 2}, True),
    ],
)
def test_what_takes_part_in_transfers(endpoint, members, transferable):
    found = facts({"model": "m", **members}, endpoint)
    expected = Path.READBACK if transferable else Path.DECODE_LOCAL
    assert found.transferable == transferable
    assert policy.choose_path(found, handle_found=True) == expected
    assert policy.choose_path(found, handle_found=False) == (
        Path.PREFILL if transferable else Path.DECODE_LOCAL
    )


def test_prefill_is_asked_for_one_token_and_nothing_else():
    found = facts(
        {
            **CHAT,
            "conversation_id": "c",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 500,
            "max_completion_tokens": 500,
            "min_tokens": 20,
            "n": 1,
            "logprobs": True,
            "top_logprobs": 5,
            "temperature": 0.3,
            "tools": [{"type": "function"}],
            "prompt_cache_key": "k",
        }
    )
    assert sent(policy.prefill_body(found, None)) == {
        **CHAT,
        "stream": False,
        "max_tokens": 1,
        "n": 1,
        "temperature": 0.3,
        "tools": [{"type": "function"}],
        "prompt_cache_key": "k",
        "kv_transfer_params": MISS_PARAMS,
    }


def test_a_handle_goes_to_prefill_as_decode_gave_it_but_for_its_direction():
    given = {**HANDLE, "do_remote_decode": False, "do_remote_prefill": True}
    handle = policy.handle_from(given)
    assert sent(policy.prefill_body(facts(CHAT), handle))["kv_transfer_params"] == HANDLE


@pytest.mark.parametrize(
    "missing", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"]
)
def test_an_incomplete_handle_is_no_handle(missing):
    assert policy.handle_from({**HANDLE, missing: None}) is None
    assert policy.handle_from({name: value for name, value in HANDLE.items() if name != missing}) is None


@pytest.mark.parametrize("bad", [None, "x", [], 1, {}])
def test_what_is_no_object_is_no_handle(bad):
    assert policy.handle_from(bad) is None


def test_decode_gets_the_clients_request_and_prefills_parameters():
    body = {**CHAT, "stream": True, "logprobs": True, "n": 1, "max_tokens": 9}
    params = {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_host": "side-channel"}
    found = facts({**body, "conversation_id": "c"})
    assert sent(policy.decode_body(found, params)) == {**body, "kv_transfer_params": params}
    assert sent(policy.decode_body(found, None)) == body


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        MISS_PARAMS,
        HANDLE,
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "remote_block_ids": []},
        "x",
    ],
)
def test_prefills_own_leg_or_nothing_readable_is_withheld_from_decode(params):
    assert policy.transfer_params({"kv_transfer_params": params}) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff",
        b'{"stream":"yes"}',
        b'{"tools":' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
def test_a_body_that_is_no_request_is_refused(raw):
    with pytest.raises(Refusal) as refusal:
        read_request("chat", raw, Headers())
    assert refusal.value.status == 400
