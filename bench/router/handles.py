"""PURE: KV handles as large as the connector's, for any number of tokens."""

from __future__ import annotations

import base64
import random
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "connector" / "src"))
from pd_connector import blockids, proof

__all__ = ["BLOCK_TOKENS", "LEASE", "blockids", "handle", "proof"]

BLOCK_TOKENS = 16
POOL_BLOCKS = 1 << 17
RUN_BLOCKS = 8
"""A pool in use gives out short runs of blocks, not one long one."""
LEASE = "@lease-of-this-answer@"
"""Stands for a lease's name, which has as many characters."""


def handle(pattern: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The recorded handle `pattern` for `tokens` tokens, with LEASE for its lease."""
    source = random.Random(tokens)
    blocks = max(1, tokens // BLOCK_TOKENS)
    starts = [source.randrange(0, POOL_BLOCKS, RUN_BLOCKS) for _ in range(-(-blocks // RUN_BLOCKS))]
    ids = [start + step for start in starts for step in range(RUN_BLOCKS)][:blocks]
    prefill = pattern["do_remote_prefill"]
    digests = proof.PROMPT_DIGEST_BYTES if prefill else proof.BLOCK_DIGEST_BYTES * len(proof.marks(blocks))
    proven = {
        "format": proof.FORMAT,
        "block_size": BLOCK_TOKENS,
        "tokens": tokens if prefill else blocks * BLOCK_TOKENS,
        "digests": base64.b64encode(source.randbytes(digests)).decode(),
    }
    counted = {"remote_num_tokens": tokens} if prefill else {}
    return pattern | counted | {"pd_proof": proven, "pd_blocks": [blockids.pack(ids)], "pd_lease": LEASE}
