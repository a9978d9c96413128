"""Cutting the KV member out of a JSON object, byte for byte."""

import json
import random

import pytest

from toolkit.router.kvmember import NotAnObject, cut_member

VALUE = '{"remote_block_ids": [[1,2]], "remote_host":"h","note":"a \\" } ] b"}'


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('{"a":1,"kv_transfer_params":%s}', '{"a":1}'),
        ('{"kv_transfer_params":%s,"a":1}', '{"a":1}'),
        ('{"a":1,"kv_transfer_params":%s,"b":2}', '{"a":1,"b":2}'),
        ('{"kv_transfer_params":%s}', "{}"),
        ('{"a" : 1 , "kv_transfer_params" : %s , "b" : 2 }', '{"a" : 1  , "b" : 2 }'),
        ('{"a":1,\n "kv_transfer_params":\t%s\n}\r', '{"a":1\n}\r'),
        ('{"kv_transfer_params":%s,"kv_transfer_params":%s,"a":1}', '{"a":1}'),
        ('{"a":1,"kv_transfer_params":%s,"kv_transfer_params":%s}', '{"a":1}'),
        (' {"a":"é\\u00e9😀","kv_transfer_params":%s}', ' {"a":"é\\u00e9😀"}'),
    ],
)
@pytest.mark.parametrize("value", [VALUE, "null", "[]", '"x"'])
def test_only_the_member_and_one_comma_go(text, clean, value):
    cut = cut_member(text.replace("%s", value).encode())
    assert cut.text.decode() == clean
    assert cut.value == json.loads(value)


@pytest.mark.parametrize(
    "text",
    [
        '{"content":"kv_transfer_params"}',
        '{"content":"\\"kv_transfer_params\\":{\\"a\\":1}"}',
        '{"content":"say \\\\\\"kv_transfer_params\\\\\\":null"}',
        '{"delta":{"kv_transfer_params":{"a":1}}}',
        '{"list":["kv_transfer_params",{"kv_transfer_params":1}]}',
    ],
)
def test_text_and_nested_members_are_not_ours(text):
    cut = cut_member(text.encode())
    assert cut.text.decode() == text
    assert cut.value is None


@pytest.mark.parametrize(
    "text",
    [
        '{"kv_transfer_params":{"a":1}',
        '"kv_transfer_params"',
        '{"kv_transfer_params" 1}',
        '{"a":1 "kv_transfer_params":1}',
        '{"kv_transfer_params":1} {}',
        '{"kv_transfer_params":',
        '[DONE] "kv_transfer_params"',
    ],
)
def test_what_cannot_be_cut_is_refused_not_passed(text):
    with pytest.raises(NotAnObject):
        cut_member(text.encode())


def test_any_object_at_any_position():
    rng = random.Random(7)
    pieces = [
        '"a":"}{,:"',
        '"b":[1,{"c":null}]',
        '"d":{"kv_transfer_params":[2]}',
        '"é":-1.5e3',
        '"f":"\\\\"',
        '"g":""',
    ]
    for _ in range(300):
        members = rng.sample(pieces, rng.randint(0, len(pieces)))
        at = rng.randint(0, len(members))
        whole = [*members[:at], f'"kv_transfer_params":{VALUE}', *members[at:]]
        cut = cut_member(("{" + ",".join(whole) + "}").encode())
        assert cut.text.decode() == "{" + ",".join(members) + "}"
        assert cut.value == json.loads(VALUE)
