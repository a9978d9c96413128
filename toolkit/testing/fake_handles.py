"""The KV metadata of a fake engine: what a handle says of its tokens, and what may be read by it.

A token is four bytes of the rendered prompt, and the digests are of these bytes: an edited history is read as
far as it is equal, as with real engines.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.testing.fake_leases import FakeLeases, read_lease

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = 16


def token_count(text: bytes) -> int:
    """Tokens of a prompt, or of one and its answer."""
    return len(text) // BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of one finished request.

    Attributes:
        text: the prompt, and of decode the answer.
        stock: the engine runs without our connector.
    """

    text: bytes
    engine_id: str
    request_id: str
    stock: bool

    def for_prefill(self, leases: FakeLeases) -> dict[str, Any] | None:
        """Decode's handle; with our connector under a lease, and none for less than a block."""
        handle = self._handle(do_remote_decode=True)
        if self.stock:
            return handle
        tokens = handle["pd_proof"]["tokens"]
        if not tokens:
            return None
        # To an engine without the connector it offers nothing.
        return handle | {"remote_num_tokens": 0, "pd_lease": leases.grant(tokens)}

    def for_decode(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Prefill's handle; our connector adds how much was read of the handle that it was asked with."""
        handle = self._handle(do_remote_decode=False)
        return handle if self.stock else {"pd_read": _read_tokens(asked, self.text), **handle}

    def _handle(self, *, do_remote_decode: bool) -> dict[str, Any]:
        tokens = token_count(self.text)
        blocks = tokens // BLOCK_TOKENS
        handle = {
            "do_remote_prefill": not do_remote_decode,
            "do_remote_decode": do_remote_decode,
            "remote_block_ids": [list(range(1, blocks + 2))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": self.request_id,
            "remote_host": "10.1.2.3",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": 1480.0,
        }
        if self.stock:
            return handle
        packed = base64.b64encode(bytes(blocks + 4)).decode()
        proof = _proof(self.text)
        return handle | {
            "remote_block_ids": [[]],
            "pd_blocks": [packed],
            "pd_proof": proof,
            "pd_lease": "prefill",
        }


def _read_tokens(asked: Mapping[str, Any], prompt: bytes) -> int:
    """Tokens that prefill reads of what it is offered: what is proven, and still held."""
    proof, lease = asked.get("pd_proof"), asked.get("pd_lease")
    if proof is None or lease is None:
        return 0
    common = _common_tokens(prompt, proof)
    return common if common and read_lease(lease) else 0


def _proof(text: bytes) -> dict[str, Any]:
    """`pd_proof` of a history: digests of it up to the ends of its blocks."""
    blocks = token_count(text) // BLOCK_TOKENS
    digests = b"".join(_digests(text, _marks(blocks)))
    return {
        "format": 2,
        "block_size": BLOCK_TOKENS,
        "tokens": blocks * BLOCK_TOKENS,
        "digests": base64.b64encode(digests).decode(),
    }


def _common_tokens(prompt: bytes, given: Mapping[str, Any]) -> int:
    """How many of the prompt's tokens a proof covers."""
    digests = base64.b64decode(given["digests"])
    whole = token_count(prompt) // BLOCK_TOKENS
    marks = [mark for mark in _marks(given["tokens"] // BLOCK_TOKENS) if mark <= whole]
    common = 0
    for place, (mark, digest) in enumerate(zip(marks, _digests(prompt, marks), strict=True)):
        if digests[place * 8 : place * 8 + 8] != digest:
            break
        common = mark
    return common * BLOCK_TOKENS


def _marks(blocks: int) -> list[int]:
    dense = max(0, blocks - 32)
    return [*range(16, dense, 16), *range(dense + 1, blocks + 1)]


def _digests(text: bytes, marks: Sequence[int]) -> Iterator[bytes]:
    """Of the text up to the ends of these blocks, which ascend."""
    view, running, place = memoryview(text), hashlib.blake2b(digest_size=8), 0
    for mark in marks:
        end = mark * BLOCK_TOKENS * BYTES_PER_TOKEN
        running.update(view[place:end])
        place = end
        yield running.digest()
