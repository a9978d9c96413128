"""The stub's handles pass the connector's own checks, and are as large as its handles are."""

from __future__ import annotations

import json

import pytest
from pd_connector import blockids
from pd_connector.handle import Handle, Proof

from bench.router.handles import BLOCK_TOKENS, LEASE, handle
from bench.router.pattern import recorded


@pytest.mark.parametrize("tokens", [16, 1000, 25_000, 100_000])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_connector_takes_it(tokens: int, role: str) -> None:
    pattern = (
        recorded("chat-prefill").document()["kv_transfer_params"]
        if role == "prefill"
        else recorded("chat-decode-stream").events()[-1]["kv_transfer_params"]
    )
    made = handle(pattern, tokens)
    assert list(made) == list(pattern)
    read = Handle.of(made, 1, tokens)
    assert len(read.groups[0]) == max(1, tokens // BLOCK_TOKENS)
    assert read.lease == LEASE
    assert len(LEASE) == len(pattern["pd_lease"])
    proof = Proof.of(made)
    assert proof.block_size == BLOCK_TOKENS
    assert proof.tokens == (tokens if role == "prefill" else tokens // BLOCK_TOKENS * BLOCK_TOKENS)
    assert len(set(blockids.unpack(made["pd_blocks"][0]))) > 0.9 * len(read.groups[0])
    assert len(json.dumps(made)) < 32 * 1024
