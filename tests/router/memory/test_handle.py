"""Handles come back as they were, and are small meanwhile."""

import random

import orjson
import pytest

from toolkit.router.memory.handle import Handle

NEEDED = ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"]


def stock(**changed):
    """As vLLM without our connector answers."""
    return {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [[7, 8, 9]],
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 5600,
        "remote_num_tokens": 48,
        "tp_size": 1,
        **changed,
    }


def test_a_handle_comes_back_as_it_came(make_params):
    params = make_params()
    assert Handle.pack(params).unpack() == params
    assert params == make_params()


@pytest.mark.parametrize(
    "changed",
    [
        {"remote_block_ids": [[1, 2], [], [3]]},
        {"remote_block_ids": [[]]},
        {"remote_block_ids": [[0, (1 << 32) - 1]]},
        {"remote_block_ids": [[1 << 32]]},
        {"remote_block_ids": [[-1]]},
        {"remote_block_ids": [[True, 1.0, 2]]},
        {"remote_block_ids": "blocks"},
        {"remote_block_ids": [1, 2]},
        {"remote_host": ["a", "b"]},
        {"pd_blocks": []},
        {"pd_blocks": ["", "AAAA"]},
        {"pd_blocks": ["AAAA", "not base64"]},
        {"pd_blocks": ["QQ==", "QR=="]},
        {"pd_blocks": ["é"]},
        {"pd_blocks": [1]},
        {"pd_blocks": None},
        {"pd_lease": ""},
        {"pd_lease": None},
        {"pd_lease": 7},
        {"pd_lease": "é" * 30},
        {"pd_proof": None},
        {"pd_proof": {}},
        {"pd_proof": {"format": 3, "digests": [1]}},
        {"pd_proof": {"format": 2, "digests": "", "more": {"a": 1}}},
        {"unknown": {"deep": [1, {"a": None}]}, "time": 1.5e300},
    ],
    ids=str,
)
@pytest.mark.parametrize("base", ["ours", "stock"])
def test_whatever_an_engine_answers_comes_back(base, changed, make_params):
    params = make_params(**changed) if base == "ours" else stock(**changed)
    back = Handle.pack(params).unpack()
    assert back == params
    assert orjson.dumps(back, option=orjson.OPT_SORT_KEYS) == orjson.dumps(
        params, option=orjson.OPT_SORT_KEYS
    )


def test_random_handles_come_back(make_params):
    source = random.Random(5)
    for seed in range(200):
        params = make_params(f"lease-{seed}", blocks=source.randrange(1, 400), seed=seed)
        for name in source.sample(sorted(params), source.randrange(6)):
            if name not in NEEDED and not name.startswith("do_remote"):
                del params[name]
        assert Handle.pack(params).unpack() == params


@pytest.mark.parametrize("flags", [{"do_remote_prefill": True}, {"do_remote_decode": False}])
def test_the_direction_is_set_for_prefill(flags, make_params):
    assert Handle.pack(make_params(**flags)).unpack() == make_params()


def test_the_direction_is_set_where_it_was_missing():
    params = stock()
    del params["do_remote_prefill"], params["do_remote_decode"]
    assert Handle.pack(params).unpack() == stock()


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("value", [None, "", 0, [], "missing"])
def test_an_incomplete_handle_is_none(name, value, make_params):
    params = make_params(**{name: value})
    if value == "missing":
        del params[name]
    assert Handle.pack(params) is None


@pytest.mark.parametrize("params", [None, [], "text", 7, {}])
def test_what_is_no_handle_is_none(params):
    assert Handle.pack(params) is None


def test_one_that_nests_too_deeply_is_none():
    deep = []
    for _ in range(300):
        deep = [deep]
    assert Handle.pack(stock(unknown=deep)) is None


def test_it_tells_what_the_router_needs(make_params):
    handle = Handle.pack(make_params("name-of-lease"))
    assert (handle.lease, handle.tokens, handle.proven, handle.engine) == (
        "name-of-lease",
        24_000,
        True,
        "decode+1f2e3d4c",
    )
    plain = Handle.pack(stock())
    assert (plain.lease, plain.tokens, plain.proven, plain.engine) == (None, 48, False, "e")


@pytest.mark.parametrize("proof", [None, 2, [2], {"format": 1}, {"format": "2"}, {}, {"tokens": "many"}])
def test_a_proof_of_another_kind_proves_nothing(proof, make_params):
    handle = Handle.pack(make_params(pd_proof=proof))
    assert (handle.proven, handle.tokens) == (False, 0)


@pytest.mark.parametrize("lease", [None, "", 7, ["a"]])
def test_what_is_no_name_is_no_lease(lease, make_params):
    assert Handle.pack(make_params(lease)).lease is None


def test_24k_tokens_take_less_than_5_500_bytes(make_params):
    handle = Handle.pack(make_params())
    assert 4000 < handle.size < 5500
    assert handle.size < 0.85 * len(orjson.dumps(make_params()))


def test_handles_of_one_engine_share_what_they_have_in_common(make_handle):
    one, other = make_handle("a", seed=1), make_handle("b", seed=2)
    assert one._shape is other._shape
    assert make_handle("c", remote_engine_id="another")._shape is not one._shape


def test_it_comes_back_from_a_file(make_params):
    handle = Handle.pack(make_params())
    assert Handle.restored(*handle.stored()).unpack() == make_params()


@pytest.mark.parametrize("cut", [0, 1, 3, 30, 200, 4000])
def test_a_damaged_one_does_not_come_back(cut, make_handle):
    shape, data = make_handle().stored()
    with pytest.raises(ValueError, match="not a stored handle"):
        Handle.restored(shape, data[:cut])
    with pytest.raises(ValueError, match="not a stored handle"):
        Handle.restored(shape, data + b"\0" * (cut + 1))
    with pytest.raises(ValueError, match="not a stored handle"):
        Handle.restored(shape[: min(cut, len(shape) - 1)], data)


@pytest.mark.parametrize("shape", [b"[]", b"{}", b"[1,2,3,4,5]", b'["a",["b"],0,0,1]', b"null"])
def test_a_foreign_shape_does_not_come_back(shape, make_handle):
    with pytest.raises(ValueError, match="not a stored handle"):
        Handle.restored(shape, make_handle().stored()[1])


def test_it_does_not_show_what_it_holds(make_handle):
    handle = make_handle("secret-lease", remote_host="secret-host")
    assert "secret" not in repr(handle)


@pytest.mark.parametrize("name", ["pd_lease", "remote_request_id", "remote_host", "more"])
def test_one_with_text_that_is_none_is_none(name):
    assert Handle.pack(stock(**{name: "\ud800"})) is None
