"""Digests that say which tokens a run of KV blocks belongs to.

The engine that holds the blocks makes them (`scheduler`), the engine that wants to read compares them
with its own prompt (`admission`). Pure: no vLLM.
"""

import base64
import binascii
import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

FORMAT = 1
"""Version of everything below; an engine reads only handles of its own."""
BLOCK_DIGEST_BYTES = 8
PROMPT_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Context:
    """What KV depends on besides the tokens themselves."""

    model: str
    block_size: int
    cache_salt: str | None = None
    lora: str | None = None
    media: tuple[str, ...] = ()

    def salt(self) -> bytes:
        """The first bytes of every digest; JSON, so that no two contexts run into each other."""
        fields = [FORMAT, self.model, self.block_size, self.cache_salt, self.lora, self.media]
        return json.dumps(fields, separators=(",", ":")).encode()


def block_digests(tokens: Sequence[int], context: Context) -> bytes:
    """One digest per whole block, each over all tokens up to that block's end, joined."""
    size = context.block_size
    running = blake2b(context.salt(), digest_size=BLOCK_DIGEST_BYTES)
    digests = []
    packed = _pack(tokens)
    step = size * 4
    for end in range(step, len(packed) + 1, step):
        running.update(packed[end - step : end])
        digests.append(running.digest())
    return b"".join(digests)


def prompt_digest(tokens: Sequence[int], context: Context) -> bytes:
    """One digest over all tokens, for the reader that takes all blocks or none."""
    return blake2b(context.salt() + _pack(tokens), digest_size=PROMPT_DIGEST_BYTES).digest()


def common_blocks(mine: bytes, theirs: bytes) -> int:
    """How many leading blocks agree."""
    width = BLOCK_DIGEST_BYTES
    most = min(len(mine), len(theirs)) // width
    for block in range(most):
        place = slice(block * width, (block + 1) * width)
        if mine[place] != theirs[place]:
            return block
    return most


def encode(digests: bytes) -> str:
    """Digests as they travel in JSON."""
    return base64.b64encode(digests).decode()


def decode(text: str) -> bytes:
    """The reverse of `encode`; raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _pack(tokens: Sequence[int]) -> bytes:
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
