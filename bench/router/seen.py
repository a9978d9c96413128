"""PURE: what the stub engine needs of a request's body, found without parsing the whole of it.

Inside a JSON text the quotes of a member's name would be escaped, so what is found is a member.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

_PARAMS = b'"kv_transfer_params":'
# A handle holds one object of its own, the proof; it has no braces in its texts.
_OBJECT = re.compile(rb"\s*(null|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})")
_STREAM = re.compile(rb'"stream":\s*true')
_USAGE = re.compile(rb'"include_usage":\s*true')
WINDOW = 1 << 16
"""Routers leave the history in one piece: everything else is near the start or the end."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A generate request. `size` is in bytes and without the handle; `held` is the handle's tokens.

    Attributes:
        keeps: decode shall keep its blocks and answer with a handle.
        lease: of the handle offered to prefill.
        releases: leases that decode may let go of.
    """

    size: int
    stream: bool
    usage: bool
    keeps: bool
    lease: bytes | None
    held: int
    releases: tuple[str, ...]


def read_body(pieces: Sequence[bytes]) -> Asked:
    """What a body asks for.

    Raises:
        ValueError: its transfer parameters are no object of the connector's, or no JSON.
    """
    size = sum(map(len, pieces))
    if size > 2 * WINDOW:
        ends = _last(pieces), _first(pieces)
        for text in ends:
            if (start := text.find(_PARAMS)) >= 0:
                return _asked(size, b"".join(ends), _object(text, start))
    text = b"".join(pieces)
    start = text.find(_PARAMS)
    return _asked(size, text, None if start < 0 else _object(text, start))


def _first(pieces: Sequence[bytes]) -> bytes:
    text = b""
    for piece in pieces:
        text += piece
        if len(text) >= WINDOW:
            break
    return text[:WINDOW]


def _last(pieces: Sequence[bytes]) -> bytes:
    text = b""
    for piece in reversed(pieces):
        text = piece + text
        if len(text) >= WINDOW:
            break
    return text[-WINDOW:]


def _object(text: bytes, start: int) -> bytes | None:
    found = _OBJECT.match(text, start + len(_PARAMS))
    if found is None:
        raise ValueError(f"transfer parameters that the stub cannot read: {text[start : start + 200]!r}")
    return None if found[1] == b"null" else found[1]


def _asked(size: int, text: bytes, member: bytes | None) -> Asked:
    params = {} if member is None else orjson.loads(member)
    lease = params.get("pd_lease")
    return Asked(
        size=size - len(member or b""),
        stream=_STREAM.search(text) is not None,
        usage=_USAGE.search(text) is not None,
        keeps=params.get("pd_retain", params.get("do_remote_prefill")) is True,
        lease=lease.encode() if isinstance(lease, str) else None,
        held=(params.get("pd_proof") or {}).get("tokens", 0),
        releases=tuple(params.get("pd_release", ())),
    )
