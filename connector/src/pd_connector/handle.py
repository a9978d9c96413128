"""The KV handle (`kv_transfer_params`) as it arrives from the network: checked before the engine sees it.

A member of the wrong type, or too few block ids, would otherwise end the engine process by an assertion
deep in the connector. Pure: no vLLM.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from pd_connector import proof

PROOF = "pd_proof"
"""The member that says which tokens the blocks hold."""
RETAIN = "pd_retain"
"""True: a plain request asks decode to keep its blocks and answer with a handle. False, beside prefill's
handle: decode need not keep the blocks of this turn, which it does otherwise."""
READ = "pd_read"
"""In prefill's answer: how many tokens of this prompt it read from decode rather than computed."""

REMOTE_MEMBERS = (
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_num_tokens",
    "remote_blocks_expiry_time",
    PROOF,
)


class HandleError(ValueError):
    """The handle cannot be used; the text is one short word for the log."""


@dataclass(frozen=True)
class Handle:
    """Where the blocks are, and how many tokens they hold. Blocks of one KV cache group per list."""

    groups: list[list[int]]
    tokens: int

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Handle":
        """Raises HandleError naming the first member that is missing or malformed."""
        for name in ("remote_engine_id", "remote_request_id", "remote_host"):
            if not isinstance(params.get(name), str) or not params[name]:
                raise HandleError(name)
        if not _is_count(params.get("remote_port")) or not 0 < params["remote_port"] < 65536:
            raise HandleError("remote_port")
        for name in ("tp_size", "dcp_size", "pp_size"):
            if name in params and not (_is_count(params[name]) and params[name] > 0):
                raise HandleError(name)
        expiry = params.get("remote_blocks_expiry_time")
        if expiry is not None and (isinstance(expiry, bool) or not isinstance(expiry, int | float)):
            raise HandleError("remote_blocks_expiry_time")
        groups = params.get("remote_block_ids")
        if not isinstance(groups, list | tuple) or not groups:
            raise HandleError("remote_block_ids")
        for group in groups:
            if not isinstance(group, list | tuple) or not all(map(_is_count, group)):
                raise HandleError("remote_block_ids")
        if not _is_count(params.get("remote_num_tokens")):
            raise HandleError("remote_num_tokens")
        return cls([list(group) for group in groups], params["remote_num_tokens"])


@dataclass(frozen=True)
class Proof:
    """Digests of the first `tokens` tokens, in blocks of `block_size`."""

    block_size: int
    tokens: int
    digests: bytes

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Proof":
        """Raises HandleError when there is none, or it is malformed or of another format."""
        found = params.get(PROOF)
        if found is None:
            raise HandleError("no-proof")
        if not isinstance(found, Mapping):
            raise HandleError("malformed-proof")
        if found.get("format") != proof.FORMAT or isinstance(found["format"], bool):
            raise HandleError("other-format")
        size, tokens, digests = (found.get(name) for name in ("block_size", "tokens", "digests"))
        if not (_is_count(size) and size and _is_count(tokens) and isinstance(digests, str)):
            raise HandleError("malformed-proof")
        try:
            return cls(size, tokens, proof.decode(digests))
        except ValueError as error:
            raise HandleError("malformed-proof") from error

    def to_wire(self) -> dict[str, Any]:
        """The value of the `pd_proof` member."""
        return {
            "format": proof.FORMAT,
            "block_size": self.block_size,
            "tokens": self.tokens,
            "digests": proof.encode(self.digests),
        }


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
