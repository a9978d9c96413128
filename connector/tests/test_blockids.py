"""Block ids as text: whatever their order they come back, stay small, and nothing else comes in."""

import base64
import contextlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pd_connector.blockids import ID_BITS, MOST_IDS, pack, unpack
from pd_connector.handle import PROOF, Proof
from pd_connector.proof import Context, block_digests

ids = st.integers(0, (1 << ID_BITS) - 1)


@given(st.lists(ids, max_size=300))
def test_any_ids_come_back(group: list[int]) -> None:
    assert unpack(pack(group)) == group


@given(st.lists(st.tuples(ids, st.integers(1, 200)), max_size=20))
def test_runs_come_back(runs: list[tuple[int, int]]) -> None:
    group = [min(start + step, (1 << ID_BITS) - 1) for start, length in runs for step in range(length)]
    assert unpack(pack(group)) == group


@pytest.mark.parametrize("group", [[], [0], [5] * 70, list(range(200, 0, -1)), [0, (1 << ID_BITS) - 1] * 40])
def test_corners_come_back(group: list[int]) -> None:
    assert unpack(pack(group)) == group


@given(st.text() | st.binary(max_size=80).map(lambda data: base64.b64encode(data).decode()))
def test_hostile_text_is_a_value_error_or_ids(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert all(0 <= one < 1 << ID_BITS for one in unpack(text))


@given(st.lists(ids, min_size=1, max_size=200), st.data())
def test_cut_or_longer_text_is_refused(group: list[int], data: st.DataObject) -> None:
    text = pack(group)
    with pytest.raises(ValueError):
        unpack(text[: data.draw(st.integers(0, len(text) // 4 - 1)) * 4])
    with pytest.raises(ValueError):
        unpack(text.rstrip("=") + "AAAA" * 2)


@pytest.mark.parametrize(
    "group", [[-1], [1 << ID_BITS], range(MOST_IDS + 1)], ids=["negative", "wide", "long"]
)
def test_what_are_no_block_ids_cannot_be_packed(group: list[int]) -> None:
    with pytest.raises(ValueError):
        pack(group)


def handle_size(group: list[int], block_size: int, tokens: list[int]) -> int:
    digests = block_digests(tokens, Context("model", block_size))
    handle = {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [[]],
        "pd_blocks": [pack(group)],
        "remote_engine_id": "e" * 64,
        "remote_request_id": "r" * 80,
        "remote_host": "h" * 60,
        "remote_port": 65535,
        "tp_size": 8,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 0,
        "remote_blocks_expiry_time": 123456789.123456789,
        "transfer_mode": "pull",
        "pd_lease": "l" * 24,
        PROOF: Proof(block_size, len(tokens), digests).to_wire(),
    }
    return len(json.dumps(handle, separators=(",", ":")))


TOKENS = list(range(100_000))


@given(st.integers(0), st.sampled_from([16, 32, 64, 128]), st.floats(0, 1))
@settings(max_examples=40)
def test_a_handle_of_100k_tokens_stays_under_24_kib(seed: int, size: int, order: float) -> None:
    """However the blocks lie in a pool of a million (16.7 million tokens in blocks of 16)."""
    group = random.Random(seed).sample(range(1 << 20), len(TOKENS) // size)
    sorted_part = int(order * len(group))
    group[:sorted_part] = sorted(group[:sorted_part])
    assert handle_size(group, size, TOKENS[: len(group) * size]) < 24 * 1024


def test_blocks_in_one_run_cost_next_to_nothing() -> None:
    assert len(pack(range(1000, 7250))) < 700
