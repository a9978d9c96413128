"""Cutting the KV member out of a JSON object, byte for byte."""

import json
import random

import pytest

from toolkit.router.request.kvmember import NotAnObject, cut_member

VALUE = '{"remote_block_ids": [[1,2]], "remote_host":"h","note":"a \\" } ] b"}'
SHAPES = [
    ('{"a":1,"kv_transfer_params":%s}', '{"a":1}'),
    ('{"kv_transfer_params":%s,"a":1}', '{"a":1}'),
    ('{"a":1,"kv_transfer_params":%s,"b":2}', '{"a":1,"b":2}'),
    ('{"kv_transfer_params":%s}', "{}"),
    ('{"a" : 1 , "kv_transfer_params" : %s , "b" : 2 }', '{"a" : 1  , "b" : 2 }'),
    ('{"a":1,\n "kv_transfer_params":\t%s\n}\r', '{"a":1\n}\r'),
    ('{ "kv_transfer_params" : %s , "b" : 2 }', '{ "b" : 2 }'),
    ('{"kv_transfer_params":%s,"kv_transfer_params":%s,"a":1}', '{"a":1}'),
    ('{"a":1,"kv_transfer_params":%s,"kv_transfer_params":%s}', '{"a":1}'),
    (' {"a":"é\\u00e9😀","kv_transfer_params":%s}', ' {"a":"é\\u00e9😀"}'),
    ('{"a":[NaN,"\\ud800"],"kv_transfer_params":%s}', '{"a":[NaN,"\\ud800"]}'),
]


@pytest.mark.parametrize(("text", "clean"), SHAPES)
@pytest.mark.parametrize("value", [VALUE, "null", "[]", '"x"', "-1.5e3"])
def test_only_the_member_and_one_comma_go(text, clean, value):
    cut = cut_member(text.replace("%s", value).encode())
    assert cut.text.decode() == clean
    assert cut.value == json.loads(value)


@pytest.mark.parametrize(("text", "clean"), SHAPES)
@pytest.mark.parametrize(
    "wrap", ['{"x":"é","response":%s,"y":[1]}', '{"response" : %s}', '\t{"response":%s,"y":2}']
)
def test_the_same_in_the_object_that_an_event_carries(text, clean, wrap):
    whole = wrap.replace("%s", text.replace("%s", VALUE)).encode()
    cut = cut_member(whole, "response")
    assert cut.text.decode() == wrap.replace("%s", clean)
    assert cut.value == json.loads(VALUE)
    assert cut_member(whole, "other").text == whole
    assert cut_member(whole).value is None


def test_both_places_at_once():
    text = '{"kv_transfer_params":%s,"response":{"kv_transfer_params":null,"id":"r"},"a":1}'
    cut = cut_member(text.replace("%s", VALUE).encode(), "response")
    assert (cut.text, cut.value) == (b'{"response":{"id":"r"},"a":1}', json.loads(VALUE))


@pytest.mark.parametrize(
    "text",
    [
        '{"content":"kv_transfer_params"}',
        '{"content":"\\"kv_transfer_params\\":{\\"a\\":1}"}',
        '{"content":"say \\\\\\"kv_transfer_params\\\\\\":null"}',
        '{"delta":{"kv_transfer_params":{"a":1}}}',
        '{"list":["kv_transfer_params",{"kv_transfer_params":1}]}',
        '{"response":"kv_transfer_params"}',
        '{"response":[{"kv_transfer_params":1}]}',
        '{"response":{"metadata":{"kv_transfer_params":"mine"}}}',
        '{"response":{"tools":[{"parameters":{"properties":{"kv_transfer_params":{"type":"string"}}}}]}}',
    ],
)
@pytest.mark.parametrize("inside", [None, "response"])
def test_text_and_deeper_members_are_not_ours(text, inside):
    cut = cut_member(text.encode(), inside)
    assert cut.text.decode() == text
    assert cut.value is None


@pytest.mark.parametrize(
    "text",
    [
        '{"kv_transfer_params":{"a":1}',
        '"kv_transfer_params"',
        '["kv_transfer_params"]',
        '{"kv_transfer_params" 1}',
        '{"a":1 "kv_transfer_params":1}',
        '{"kv_transfer_params":1} {}',
        '{"kv_transfer_params":',
        '[DONE] "kv_transfer_params"',
        '{"kv_transfer_params":1,"kv_transfer_params":1',
        '"kv_transfer_params" "kv_transfer_params"',
        '{"kv_transfer_params":' + "[" * 100_000,
        '{"kv_transfer_params":1,"a":"kv_transfer_params","b":' + "[" * 100_000,
    ],
)
def test_what_cannot_be_cut_is_refused_not_passed(text):
    with pytest.raises(NotAnObject):
        cut_member(text.encode(), "response")


def test_bytes_that_are_no_text_are_refused_too():
    for text in (b'{"a":"\xff","kv_transfer_params":1}', b'\xff"kv_transfer_params""kv_transfer_params"'):
        with pytest.raises(NotAnObject):
            cut_member(text)


def test_any_object_at_any_position():
    rng = random.Random(7)
    pieces = [
        '"a":"}{,:"',
        '"b":[1,{"c":null}]',
        '"d":{"kv_transfer_params":[2]}',
        '"é":-1.5e3',
        '"f":"\\\\"',
        '"g":""',
        '"h":"kv_transfer_params"',
    ]
    for _ in range(500):
        members = rng.sample(pieces, rng.randint(0, len(pieces)))
        at = rng.randint(0, len(members))
        whole = [*members[:at], f'"kv_transfer_params":{VALUE}', *members[at:]]
        clean, text = "{" + ",".join(members) + "}", "{" + ",".join(whole) + "}"
        for inside, form in ((None, "%s"), ("response", '{"z":0,"response":%s}')):
            cut = cut_member(form.replace("%s", text).encode(), inside)
            assert cut.text.decode() == form.replace("%s", clean)
            assert cut.value == json.loads(VALUE)
