"""What the router reads of a request, and what it refuses."""

import json
from contextlib import suppress

import pytest

from toolkit.router.paths.choice import Path
from toolkit.router.request.bodies import decode_body, prefill_body
from toolkit.router.request.body import MOST_BYTES, MOST_MEMBERS
from toolkit.router.request.dialects import DIALECTS, Endpoint
from toolkit.router.request.facts import MOST_ITEMS
from toolkit.router.request.refusal import Refusal

CHAT, COMPLETIONS, RESPONSES, MESSAGES = Endpoint
HELLO = [{"role": "user", "content": "é"}]
PLAIN = {
    CHAT: {"model": "m", "messages": HELLO},
    COMPLETIONS: {"model": "m", "prompt": "é" * 600},
    RESPONSES: {"model": "m", "input": HELLO},
    MESSAGES: {"model": "m", "messages": HELLO, "max_tokens": 9},
}
every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))


@every_endpoint
@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({"conversation_id": "b"}, {"x_conversation_id": "h"}, "b"),
        ({}, {"x_conversation_id": "c", "x_session_id": "s", "x_correlation_id": "o"}, "c"),
        ({}, {"x_session_id": "s", "x_correlation_id": "o"}, "s"),
        ({"prompt_cache_key": "k"}, {"x_correlation_id": "o"}, "o"),
        ({}, {"x_session_id": "Zoë"}, "Zoë"),
        ({"prompt_cache_key": "k"}, {}, None),
        ({}, {"x_session_id": ""}, None),
        ({}, {}, None),
    ],
)
def test_the_conversation_is_named_in_this_order(read, endpoint, body, headers, expected):
    found = read(endpoint, {**PLAIN[endpoint], **body}, **headers)
    assert found.conversation == expected
    assert (found.keys.explicit is None) == (expected is None)
    assert "conversation_id" not in found.members
    assert found.keys.end is not None


@every_endpoint
@pytest.mark.parametrize("bad", ["", "x" * 257, 5, None, ["a"], {"a": 1}, True])
def test_a_bad_conversation_id_is_refused(read, endpoint, bad):
    with pytest.raises(Refusal) as refusal:
        read(endpoint, {**PLAIN[endpoint], "conversation_id": bad})
    assert (refusal.value.status, refusal.value.param) == (400, "conversation_id")


@pytest.mark.parametrize("header", ["x_conversation_id", "x_session_id", "x_correlation_id"])
def test_a_long_name_in_a_header_is_refused(read, header):
    with pytest.raises(Refusal) as refusal:
        read(CHAT, PLAIN[CHAT], **{header: "x" * 257})
    assert (refusal.value.status, refusal.value.param) == (400, header.replace("_", "-"))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("prefill", Path.PREFILL),
        ("readback", Path.READBACK),
        ("decode-local", Path.DECODE_LOCAL),
        (" ReadBack ", Path.READBACK),
        ("", None),
    ],
)
def test_a_header_forces_a_path(read, value, path):
    assert read(CHAT, PLAIN[CHAT], x_kv_path=value).forced == path


@pytest.mark.parametrize("value", ["decode", "auto", "é", "prefill,readback", b"\xff\x00"])
def test_another_path_is_refused(read, value):
    with pytest.raises(Refusal) as refusal:
        read(CHAT, PLAIN[CHAT], x_kv_path=value)
    assert (refusal.value.status, refusal.value.param) == (400, "x-kv-path")
    assert "prefill, readback, decode-local" in refusal.value.message


@every_endpoint
@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
@pytest.mark.parametrize("value", [{}, {"do_remote_prefill": True}, [], "x", 1, False])
def test_clients_do_not_set_kv_metadata(read, endpoint, name, value):
    for body in ({name: value}, {"vllm_xargs": {name: value}}):
        with pytest.raises(Refusal) as refusal:
            read(endpoint, {**PLAIN[endpoint], **body})
        assert refusal.value.status == 400
        assert name in refusal.value.message


def test_the_last_of_two_equal_names_counts_as_it_does_for_vllm(read):
    hidden = b'{"messages":[],"kv_transfer_params":null,"kv_transfer_params":{"a":1}}'
    with pytest.raises(Refusal):
        read(CHAT, hidden)
    shown = b'{"messages":[],"kv_transfer_params":{"a":1},"kv_transfer_params":null,"n":2,"n":1}'
    found = read(CHAT, shown)
    assert ({name: bytes(text) for name, text in found.members.items()}, found.transferable) == (
        {"n": b"1"},
        True,
    )


@every_endpoint
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[1]",
        b"[]",
        b'"x"',
        b"null",
        b"7",
        b"\xff",
        b'\xff\xfe{\x00"\x00',
        b'{"stream":"yes"}',
        b'{"stream":1}',
        b'{"stream":[true]}',
        b'{"temperature":NaN}',
        b'{"user":"\\ud800"}',
        b'{"stream":"\xc3\x28"}',
        b'{"user":"\xc3\x28"}',
        b'{"user":"\xed\xa0\x80"}',
        b'{"messages":["\xed\xa0\x80"]}',
        b'{"temperature":1e999}',
        b'{"text":{"format":{"maximum":1e999}}}',
        b'{"tools":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"metadata":' + b'{"a":' * 300 + b"1" + b"}" * 301,
        b'{"tools":[{}, ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"]}",
        b"[" * 100_000,
        b'{"messages":[' + b"[" * 100_000 + b"]" * 100_001 + b"}",
        b'{"a":' * 100_000,
        b'{"a":1}x',
    ],
)
def test_a_body_that_is_no_request_is_refused(read, endpoint, raw):
    with pytest.raises(Refusal) as refusal:
        read(endpoint, raw)
    assert refusal.value.status == 400


@every_endpoint
@pytest.mark.parametrize(
    "text",
    [
        b'[ {"content" : "\\u00e9\\/", "at":1.0e0} , 2 ]',
        b'{"b": 1, "a": 1, "b": 2}',
        b"-0.0",
    ],
)
@pytest.mark.parametrize("name", ["tools", "metadata", "history"])
def test_what_the_client_wrote_goes_on_byte_for_byte(read, endpoint, name, text):
    name = DIALECTS[endpoint].history if name == "history" else name
    looked_into = (endpoint, name) == (RESPONSES, "tools")
    if looked_into or ((endpoint, name) == (COMPLETIONS, "prompt") and text[:1] == b"["):
        text = b'[ "\\u00e9\\/" ]'
    found = read(endpoint, b'{ "%b" :\t%b , "model":"m"}' % (name.encode(), text))
    for pieces in (decode_body(found, None, retain=True), prefill_body(found, None)):
        assert b'"%b":%b' % (name.encode(), text) in b"".join(pieces)


@every_endpoint
@pytest.mark.parametrize("name", ["vllm_xargs", "prompt", "tools", "system", "conversation_id"])
def test_no_depth_is_a_fault_of_ours(read, endpoint, name):
    """Somewhere here the interpreter's own limit is met, by one call or by the next."""
    statuses = set()
    for deep in range(900, 1000):
        try:
            read(endpoint, b'{"%b":' % name.encode() + b"[" * deep + b"]" * deep + b"}")
        except Refusal as refusal:
            statuses.add(refusal.status)
    assert statuses <= {400}


@every_endpoint
def test_many_brackets_beside_each_other_are_not_deep(read, endpoint):
    many = [{"role": "user", "content": "{[" * 400}] * 300
    name = DIALECTS[endpoint].history
    body = {name: "[{" * 500 if name == "prompt" else many, "metadata": [{}] * 300}
    assert read(endpoint, {**body, "tools": [{"a": [[]] * 300}]}).transferable


def test_korean_is_no_surrogate(read):
    assert read(CHAT, {"messages": [{"content": "퀀 ퟿"}], "user": "퀀"}).transferable
    assert read(CHAT, '{"messages": [{"content": "퀀"}]}'.encode()).keys.end


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : "), ("\n,", ":\n")])
@pytest.mark.parametrize("nested", [False, True])
def test_a_prompt_of_tokens_is_known_however_it_is_spaced(read, separators, nested):
    def turn(count):
        prompt = list(range(1000, 1000 + count))
        written = json.dumps({"prompt": [prompt] if nested else prompt}, separators=separators)
        return read(COMPLETIONS, written.encode()).keys

    one, longer = turn(600), turn(610)
    assert [*longer.text.keys_at([one.text.length])] == [one.end]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : ")])
def test_a_billing_header_changes_no_key_however_it_is_spaced(read, separators):
    def keys(*before):
        system = [*before, {"type": "text", "text": "be brief"}]
        body = {"system": system, "messages": HELLO, "max_tokens": 1}
        return read(MESSAGES, json.dumps(body, separators=separators).encode()).keys

    assert keys() == keys({"type": "text", "text": "x-anthropic-billing-header: cch=1"})


STRANGE = [
    None,
    0,
    -1,
    1.5,
    True,
    "",
    "x",
    [],
    [None],
    [[]],
    [{}],
    {},
    {"a": [1]},
    10**40,
    [10**40],
    ["x", 1],
]


@every_endpoint
@pytest.mark.parametrize(
    "name", ["messages", "prompt", "input", "system", "tools", "model", "n", "best_of", "max_tokens", "store"]
)
@pytest.mark.parametrize("value", STRANGE)
def test_what_only_an_engine_can_judge_reaches_it_unchanged(read, sent, endpoint, name, value):
    body = {**PLAIN[endpoint], name: value}
    found = read(endpoint, body)
    assert sent(decode_body(found, None, retain=False)) == body
    assert isinstance(found.model, str)


@pytest.mark.parametrize(
    ("endpoint", "members", "transferable"),
    [
        (CHAT, {}, True),
        (CHAT, {"n": 1}, True),
        (CHAT, {"n": None}, True),
        (CHAT, {"n": 2}, False),
        (CHAT, {"n": "1"}, False),
        (CHAT, {"n": 10**30}, False),
        (CHAT, {"use_beam_search": True}, False),
        (CHAT, {"use_beam_search": "yes"}, False),
        (CHAT, {"prompt_logprobs": 1}, False),
        (CHAT, {"prompt_logprobs": 0}, False),
        (CHAT, {"prompt_logprobs": None}, True),
        (CHAT, {"logprobs": True, "top_logprobs": 2}, True),
        (CHAT, {"echo": True}, False),
        (CHAT, {"echo": False}, True),
        (CHAT, {"truncate_prompt_tokens": -1}, False),
        (CHAT, {"truncate_prompt_tokens": "-1"}, False),
        (CHAT, {"truncate_prompt_tokens": 100}, True),
        (CHAT, {"truncate_prompt_tokens": None}, True),
        (CHAT, {"tools": [{}], "tool_choice": {"type": "tool"}}, True),
        (COMPLETIONS, {"prompt": "a"}, True),
        (COMPLETIONS, {"prompt": ["a"]}, True),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, True),
        (COMPLETIONS, {"prompt": [[1, 2]]}, True),
        (COMPLETIONS, {"prompt": []}, True),
        (COMPLETIONS, {"prompt": ["a", "b"]}, False),
        (COMPLETIONS, {"prompt": [[1], [2]]}, False),
        (COMPLETIONS, {"n": 3}, False),
        (COMPLETIONS, {"best_of": 2}, False),
        (COMPLETIONS, {"best_of": 1}, True),
        (COMPLETIONS, {"prompt_embeds": "abc"}, False),
        (COMPLETIONS, {"echo": True}, True),
        (COMPLETIONS, {"logprobs": 1}, True),
        (COMPLETIONS, {"echo": True, "logprobs": 0}, False),
        (COMPLETIONS, {"prompt_logprobs": 0}, False),
        (COMPLETIONS, {"truncate_prompt_tokens": -1}, False),
        (RESPONSES, {}, True),
        (RESPONSES, {"previous_response_id": "resp_1"}, False),
        (RESPONSES, {"previous_response_id": 5}, False),
        (RESPONSES, {"previous_response_id": None}, True),
        (RESPONSES, {"background": True}, False),
        (RESPONSES, {"background": False}, True),
        (RESPONSES, {"truncation": "disabled"}, True),
        # vLLM truncates unless it says "disabled".
        (RESPONSES, {"truncation": "auto"}, False),
        (RESPONSES, {"truncation": None}, False),
        (RESPONSES, {"tools": [{"type": "function", "name": "f"}]}, True),
        (RESPONSES, {"tools": [{"type": "function"}, {"type": "code_interpreter"}]}, False),
        (RESPONSES, {"tools": [{"type": "web_search_preview"}]}, False),
        (RESPONSES, {"tools": [{"type": "mcp", "server_label": "x"}]}, False),
        (MESSAGES, {}, True),
        (MESSAGES, {"tool_choice": {"type": "any"}}, True),
        (MESSAGES, {"tool_choice": {"type": "auto"}}, True),
        (MESSAGES, {"tool_choice": {"type": "tool", "name": "f"}}, False),
    ],
)
def test_what_takes_part_in_transfers(read, endpoint, members, transferable):
    assert read(endpoint, {**PLAIN[endpoint], **members}).transferable == transferable


def test_the_next_turn_contains_the_end_of_this_one(read):
    history = {
        CHAT: ("messages", [{"role": "user", "content": f"{n}"} for n in range(5)]),
        MESSAGES: (
            "messages",
            [{"role": "user", "content": [{"type": "text", "text": f"{n}"}]} for n in range(5)],
        ),
        RESPONSES: ("input", [{"type": "message", "role": "user", "content": f"{n}"} for n in range(5)]),
    }
    for endpoint, (name, items) in history.items():
        body = {**PLAIN[endpoint], "tools": [{"name": "t"}]}
        first, second = (read(endpoint, {**body, name: items[:count]}) for count in (3, 5))
        assert first.keys.end in second.keys.chain
        assert second.keys.end not in first.keys.chain
        assert second.history_bytes > first.history_bytes > 0
        other = read(endpoint, {**body, name: items, "tools": [{"name": "u"}]})
        assert not set(other.keys.chain) & set(second.keys.chain)


@pytest.mark.parametrize("shape", [str, lambda text: [text], lambda text: list(text.encode())])
def test_a_prompt_is_found_by_its_beginning(read, shape):
    text = "some words of a prompt " * 80
    found = [read(COMPLETIONS, {"prompt": shape(part)}).keys for part in (text, text + " and more")]
    assert found[0].chain
    assert set(found[0].chain) <= set(found[1].chain)


@pytest.mark.parametrize("prompt", [["a" * 600, "b" * 600], [[1] * 600, [2] * 600], None, 5, {"a": 1}])
def test_what_is_no_single_prompt_is_found_by_name_alone(read, prompt):
    keys = read(COMPLETIONS, {"prompt": prompt, "conversation_id": "c"}).keys
    assert keys.explicit is not None
    assert (keys.chain, keys.end) == ((), None)


def test_another_credential_model_salt_or_endpoint_is_another_conversation(read):
    body = {"model": "m", "messages": HELLO, "input": HELLO}
    variants = [
        read(CHAT, body),
        read(CHAT, body, tenant=b"u" * 16),
        read(CHAT, {**body, "model": "n"}),
        read(CHAT, {**body, "cache_salt": "s"}),
        read(CHAT, {**body, "prompt_cache_key": "k"}),
        read(CHAT, {**body, "chat_template_kwargs": {"enable_thinking": False}}),
        read(RESPONSES, body),
        read(MESSAGES, body),
    ]
    assert len({found.keys.end for found in variants}) == len(variants)


def test_a_digest_that_changes_with_each_request_is_not_part_of_the_history(read):
    """vLLM takes such blocks of a system prompt out before it renders it."""

    def keys(header, *, text="be brief"):
        system = [{"type": "text", "text": header}, {"type": "text", "text": text}]
        return read(MESSAGES, {**PLAIN[MESSAGES], "system": system}).keys

    first, second = (keys(f"x-anthropic-billing-header: cch={n}") for n in range(2))
    assert first == second
    assert first != keys("x-anthropic-billing-header: cch=0", text="be long")
    assert keys("a") != keys("b")


@pytest.mark.parametrize(
    ("endpoint", "members", "previous", "stores"),
    [
        (RESPONSES, {}, None, True),
        (RESPONSES, {"store": None}, None, True),
        (RESPONSES, {"store": False}, None, False),
        (RESPONSES, {"previous_response_id": "resp_1"}, "resp_1", True),
        (CHAT, {"store": True}, None, False),
    ],
)
def test_what_an_engine_may_remember(read, endpoint, members, previous, stores):
    found = read(endpoint, {**PLAIN[endpoint], **members})
    assert (found.previous_response, found.stores) == (previous, stores)


def test_only_streams_of_messages_do_not_name_their_blocks(read):
    told = {
        (endpoint, stream): read(endpoint, {**PLAIN[endpoint], "stream": stream}).tells_handle
        for endpoint in Endpoint
        for stream in (True, False)
    }
    assert [key for key, tells in told.items() if not tells] == [(MESSAGES, True)]


LONG = 2**64 + 1


@pytest.mark.parametrize(
    ("endpoint", "members"),
    [
        (CHAT, {"max_tokens": LONG}),
        (CHAT, {"tools": [{"function": {"parameters": {"properties": {"a": {"maximum": LONG}}}}}]}),
        (CHAT, {"messages": [*HELLO, {"role": "assistant", "content": None, "value": -LONG}]}),
        (CHAT, {"messages": [{"content": "x", "tool_calls": [{"function": {"arguments": {"a": LONG}}}]}]}),
        (CHAT, {"response_format": {"json_schema": {"schema": {"const": LONG}}}}),
        (CHAT, {"vllm_xargs": {"a": [LONG, 0.1, "é"]}}),
        (RESPONSES, {"input": [{"type": "x", "value": 10**300}]}),
        (
            MESSAGES,
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"a": LONG}}]}]},
        ),
    ],
)
def test_integers_of_any_length_stay_what_they_are(read, sent, endpoint, members):
    body = {**PLAIN[endpoint], "temperature": 0.7, "user": 'é"\\', **members}
    found = read(endpoint, {**body, "conversation_id": "c", "kv_transfer_params": None})
    assert sent(decode_body(found, None, retain=False)) == body
    kept = {name: value for name, value in members.items() if name != "max_tokens"}
    assert kept.items() <= sent(prefill_body(found, None)).items()


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("items", [1, {}, {"role": "user", "content": "x"}])
@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, MESSAGES])
def test_a_history_of_very_many_items_is_known_by_its_name_only(read, endpoint, separators, items):
    """Each would cost a digest, and the event loop would stand still meanwhile."""
    name = DIALECTS[endpoint].history
    for count, known in ((MOST_ITEMS, True), (MOST_ITEMS + 1, False), (400_000, False)):
        raw = json.dumps({**PLAIN[endpoint], name: [items] * count}, separators=separators).encode()
        found = read(endpoint, raw, x_conversation_id="c")
        assert (len(found.keys.chain), found.keys.explicit is not None) == (count if known else 0, True)


@every_endpoint
@pytest.mark.parametrize(
    "body",
    [
        {f"a{number}": 1 for number in range(MOST_MEMBERS + 1)},
        {"metadata": [{}] * (MOST_BYTES // 4 + 1)},
        {"tools": [{}] * (MOST_BYTES // 4 + 1)},
    ],
    ids=["members", "metadata", "tools"],
)
def test_values_that_take_much_memory_are_refused(read, endpoint, body):
    with pytest.raises(Refusal) as refusal:
        read(endpoint, json.dumps({**PLAIN[endpoint], **body}).encode())
    assert refusal.value.status == 400
    assert "more than" in refusal.value.message


@pytest.mark.parametrize("strange", [b"1e999", b'"\\ud800"', b"[" * 995 + b"]" * 995])
def test_a_billing_block_with_a_value_that_cannot_be_read_is_none_or_refused(read, strange):
    block = b'[{"type":"text","text":"x-anthropic-billing-header: a","z":%b}]' % strange
    raw = b'{"system":%b,"messages":[{"role":"user","content":"hi"}]}' % block
    with suppress(Refusal):
        assert read(MESSAGES, raw).keys.end
