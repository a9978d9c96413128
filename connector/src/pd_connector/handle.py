"""The KV handle (`kv_transfer_params`) as it arrives from the network: checked before the engine sees it.

A member of the wrong type, or too few block ids, would otherwise end the engine process by an assertion
deep in the connector. Pure: no vLLM.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeGuard

from pd_connector import blockids, proof

PROOF = "pd_proof"
"""The member that says which tokens the blocks hold."""
BLOCKS = "pd_blocks"
"""The block ids as text, one list per KV cache group (`blockids`); in its presence `remote_block_ids` is
empty."""
LEASE = "pd_lease"
"""The name of the lease under which the blocks are held; whoever knows it may renew, claim and release it."""
RELEASE = "pd_release"
"""In a request to decode: leases that it may let go of."""
RETAIN = "pd_retain"
"""True: a plain request asks decode to keep its blocks and answer with a handle. False, beside prefill's
handle: decode need not keep the blocks of this turn, which it does otherwise."""
SIGNATURE = "pd_signature"
"""Where the engines share a secret: that one of them made this handle, as it is."""
READ = "pd_read"
"""In prefill's answer: how many tokens of this prompt it read from decode rather than computed."""

REMOTE_MEMBERS = (
    "remote_block_ids",
    BLOCKS,
    LEASE,
    SIGNATURE,
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_num_tokens",
    "remote_blocks_expiry_time",
    PROOF,
)


_SEALED = (BLOCKS, PROOF, "remote_engine_id", "remote_request_id", "tp_size", "dcp_size", "pp_size")
_SIGNED = (*_SEALED, LEASE, "remote_host", "remote_port")
MOST_LEASES = 1024
MOST_LEASE_NAME = 64
MOST_RANKS = 4096
"""More of any is no engine and no router, only work."""


class HandleError(ValueError):
    """The handle cannot be used; the text is one short word for the log."""


@dataclass(frozen=True)
class Handle:
    """Where the blocks are, and how many tokens they hold. Blocks of one KV cache group per list."""

    groups: list[list[int]]
    tokens: int
    lease: str
    """Empty where there is none: then nothing is read."""

    @classmethod
    def of(cls, params: Mapping[str, Any], groups: int, most: int) -> "Handle":
        """Raises HandleError naming the first member that is missing or malformed. A handle of another number
        of groups is not unpacked, nor is a group of more than `most` blocks: that is work for nothing."""
        for name in ("remote_engine_id", "remote_request_id", "remote_host"):
            if not isinstance(params.get(name), str) or not params[name]:
                raise HandleError(name)
        if not _is_count(params.get("remote_port")) or not 0 < params["remote_port"] < 65536:
            raise HandleError("remote_port")
        for name in ("tp_size", "dcp_size", "pp_size"):
            if name in params and not (_is_count(params[name]) and 0 < params[name] <= MOST_RANKS):
                raise HandleError(name)
        expiry = params.get("remote_blocks_expiry_time")
        if expiry is not None and (isinstance(expiry, bool) or not isinstance(expiry, int | float)):
            raise HandleError("remote_blocks_expiry_time")
        blocks = _blocks(params, groups, most)
        tokens = params.get("remote_num_tokens")
        if not _is_count(tokens) or tokens >= 1 << blockids.ID_BITS:
            raise HandleError("remote_num_tokens")
        lease = params.get(LEASE, "")
        if not isinstance(lease, str) or len(lease) > MOST_LEASE_NAME:
            raise HandleError(LEASE)
        return cls(blocks, tokens, lease)


def _blocks(params: Mapping[str, Any], groups: int, most: int) -> list[list[int]]:
    name = BLOCKS if params.get(BLOCKS) is not None else "remote_block_ids"
    found = params.get(name)
    if not isinstance(found, list | tuple) or not found:
        raise HandleError(name)
    if len(found) != groups:
        raise HandleError("other-groups")
    if name == BLOCKS:
        try:
            return [blockids.unpack(text, most) for text in found]
        except (ValueError, TypeError) as error:
            raise HandleError(name) from error
    for group in found:
        if not isinstance(group, list | tuple) or len(group) > most or not all(map(_is_block_id, group)):
            raise HandleError(name)
    return [list(group) for group in found]


def seal(params: Mapping[str, Any]) -> str:
    """Digest of what a handle says of its blocks and their engine. The holder compares it with its own: a
    handle put together from two, or edited, is no handle of any lease.

    Raises HandleError for one that nests too deeply."""
    return blake2b(_canonical(params, _SEALED), digest_size=16).hexdigest()


def sign(params: Mapping[str, Any], secret: bytes) -> str:
    """The value of `pd_signature`: a handle that names another host, or anything else than the engine that
    made it did, has another one. Raises HandleError as `seal` does."""
    key = blake2b(secret, digest_size=32).digest()
    return blake2b(_canonical(params, _SIGNED), digest_size=16, key=key).hexdigest()


def is_signed(params: Mapping[str, Any], secret: bytes) -> bool:
    """By one who knows the secret. Raises HandleError as `seal` does."""
    found = params.get(SIGNATURE)
    return isinstance(found, str) and found.isascii() and hmac.compare_digest(found, sign(params, secret))


def _canonical(params: Mapping[str, Any], names: Sequence[str]) -> bytes:
    try:
        return json.dumps([params.get(name) for name in names], sort_keys=True).encode()
    except RecursionError as error:
        raise HandleError("malformed-proof") from error


def released_leases(params: Mapping[str, Any]) -> list[str]:
    """The leases that a request lets go of; what is no list of names names none."""
    found = params.get(RELEASE)
    if not isinstance(found, list | tuple) or len(found) > MOST_LEASES:
        return []
    return [name for name in found if isinstance(name, str)]


def to_wire(groups: Sequence[Sequence[int]]) -> list[str]:
    """The value of the `pd_blocks` member."""
    return [blockids.pack(group) for group in groups]


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


def _is_block_id(value: object) -> bool:
    return _is_count(value) and value < 1 << blockids.ID_BITS
