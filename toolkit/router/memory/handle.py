"""A decode engine's KV handle, small in memory: 100,000 of long conversations must fit beside each other.

What all handles of one engine share is kept once; the rest is one run of bytes, with base64 texts undone and
lists of block ids packed.
"""

from __future__ import annotations

import binascii
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

PROOF_FORMAT = 2
"""Format of the connector's `pd_proof` that makes a handle safe to read whatever the prompt."""

# Without one of these prefill cannot read (vLLM's pull scheduler asks for all of them).
_NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")

# Equal in every handle of one engine process. Whatever else a handle has counts as its own.
_SHARED = (
    "remote_engine_id",
    "remote_host",
    "remote_port",
    "remote_registration_generation",
    "transfer_mode",
    "tp_size",
    "dcp_size",
    "pp_size",
)
_SET_HERE = {"do_remote_decode": True, "do_remote_prefill": False}

_SHAPES = 1024
"""Kept for new handles; each start of an engine makes a few."""
_LENGTH_BYTES = 4
_OBJECT_BYTES = 260
"""Measured in a map of 100,000: a Handle, the header of its bytes, and what lies unused between those of
other lengths."""


class _Shape:
    """What many handles have in common: values, names of their own members, and what stands packed."""

    __slots__ = ("blocks", "digests", "ids", "own", "proven", "shared", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.shared, self.own, self.blocks, self.ids, self.digests, self.proven = orjson.loads(text)

    @property
    def parts(self) -> int:
        """How many packed runs follow a handle's own members."""
        return int(self.blocks) + int(self.ids) + int(self.digests)


@lru_cache(_SHAPES)
def _shape(text: bytes) -> _Shape:
    return _Shape(text)


@dataclass(frozen=True, slots=True, repr=False)
class Handle:
    """What prefill is sent so that it reads a conversation's KV from decode; holds hosts and a lease."""

    _shape: _Shape
    _data: bytes

    @classmethod
    def pack(cls, params: object) -> Handle | None:
        """A decode engine's `kv_transfer_params`; None where prefill could do nothing with them: a member is
        missing, or they nest too deeply to be sent."""
        if not isinstance(params, dict) or not all(params.get(name) for name in _NEEDED):
            return None
        shared = {name: params[name] for name in _SHARED if name in params}
        own = {name: params[name] for name in params if name not in shared and name not in _SET_HERE}
        lease = own.get("pd_lease")
        if lease and isinstance(lease, str):
            del own["pd_lease"]
        else:
            lease = ""
        blocks = _unbase64(own.get("pd_blocks"))
        if blocks:
            del own["pd_blocks"]
        ids = _packed_ids(own["remote_block_ids"])
        if ids:
            del own["remote_block_ids"]
        proof = own.get("pd_proof")
        digests: list[bytes] = []
        if isinstance(proof, dict) and (digests := _unbase64([proof.get("digests")])):
            own["pd_proof"] = {name: value for name, value in proof.items() if name != "digests"}
        proven = isinstance(proof, dict) and proof.get("format") == PROOF_FORMAT
        try:
            shape = orjson.dumps([shared, list(own), len(blocks), len(ids), len(digests), proven])
            values = orjson.dumps(list(own.values()))
            text = lease.encode()
        except (orjson.JSONEncodeError, UnicodeEncodeError):
            return None
        return cls(_shape(shape), _joined([text, values, *blocks, *ids, *digests]))

    def unpack(self) -> dict[str, Any]:
        """The same members again, ready for prefill."""
        shape, (lease, values, *parts) = self._shape, _split(self._data)
        params = {**shape.shared, **_SET_HERE, **dict(zip(shape.own, orjson.loads(values), strict=True))}
        if lease:
            params["pd_lease"] = lease.decode()
        texts = [binascii.b2a_base64(part, newline=False).decode() for part in parts[: shape.blocks]]
        if texts:
            params["pd_blocks"] = texts
        if shape.ids:
            packed = parts[shape.blocks : shape.blocks + shape.ids]
            params["remote_block_ids"] = [_unpacked_ids(part) for part in packed]
        if shape.digests:
            params["pd_proof"]["digests"] = binascii.b2a_base64(parts[-1], newline=False).decode()
        return params

    def stored(self) -> tuple[bytes, bytes]:
        """For a file: what many handles share, and the rest."""
        return self._shape.text, self._data

    @classmethod
    def restored(cls, shape: bytes, data: bytes) -> Handle:
        """The reverse of `stored`.

        Raises:
            ValueError: these are not bytes that `stored` gave.
        """
        try:
            handle = cls(_shape(shape), data)
            if len(_split(data)) != 2 + handle._shape.parts or not isinstance(handle._own(), dict):
                raise ValueError("its parts are not whole")
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a stored handle: {error}") from error
        return handle

    @property
    def lease(self) -> str | None:
        """Under which decode holds the blocks; None: until its fixed time is over."""
        return self._part(0).decode() or None

    @property
    def tokens(self) -> int:
        """How many tokens its blocks hold."""
        own = self._own()
        proof = own.get("pd_proof")
        found = (proof if isinstance(proof, dict) else {}).get("tokens") or own.get("remote_num_tokens")
        return found if isinstance(found, int) else 0

    @property
    def proven(self) -> bool:
        """Prefill compares it with its own prompt before it reads, and asks the holder."""
        return bool(self._shape.proven)

    @property
    def engine(self) -> str:
        """The id of the engine process that holds the blocks."""
        return str(self._shape.shared["remote_engine_id"])

    @property
    def size(self) -> int:
        """Bytes of memory that are its alone."""
        return len(self._data) + _OBJECT_BYTES

    def _own(self) -> dict[str, Any]:
        lease = _LENGTH_BYTES + int.from_bytes(self._data[:_LENGTH_BYTES], "little")
        return dict(zip(self._shape.own, orjson.loads(self._part(lease)), strict=True))

    def _part(self, at: int) -> bytes:
        """The part that begins there."""
        start = at + _LENGTH_BYTES
        return self._data[start : start + int.from_bytes(self._data[at:start], "little")]


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(piece for part in parts for piece in (len(part).to_bytes(_LENGTH_BYTES, "little"), part))


def _split(data: bytes) -> list[bytes]:
    parts, place = [], 0
    while place < len(data):
        start = place + _LENGTH_BYTES
        place = start + int.from_bytes(data[place:start], "little")
        parts.append(data[start:place])
    if place != len(data):
        raise ValueError("it is cut off")
    return parts


def _unbase64(texts: object) -> list[bytes]:
    """The bytes behind each text; empty where one would not come back as the same text."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return []
    try:
        parts = [binascii.a2b_base64(text, strict_mode=True) for text in texts]
    except ValueError:
        return []
    same = all(
        binascii.b2a_base64(part, newline=False).decode() == text
        for part, text in zip(parts, texts, strict=True)
    )
    return parts if same else []


def _packed_ids(groups: object) -> list[bytes]:
    """Each list of block ids as 32-bit numbers; empty where they are none, or lists of anything else."""
    if not isinstance(groups, list) or not any(groups):
        return []
    if not all(isinstance(group, list) and {int}.issuperset(map(type, group)) for group in groups):
        return []
    try:
        return [_little(array("I", group)).tobytes() for group in groups]
    except OverflowError:
        return []


def _unpacked_ids(part: bytes) -> list[int]:
    return _little(array("I", part)).tolist()


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
