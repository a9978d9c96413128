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

FORMAT = 2
"""Version of everything below; an engine reads only handles of its own."""
BLOCK_DIGEST_BYTES = 8
PROMPT_DIGEST_BYTES = 16
NEARNESS = 16
"""An edit n blocks before a history's end costs less than n / NEARNESS blocks of reuse more. The last
2 * NEARNESS blocks have a digest each."""


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


def marks(blocks: int) -> list[int]:
    """After how many blocks there is a digest, in a history of so many whole blocks. Ascending.

    They lie the denser the nearer the end: what is computed anew after an edit grows little, wherever it is,
    and a longer history needs few digests more."""
    places: list[int] = []
    place, stride = blocks, 1
    while place > 0:
        count = NEARNESS if stride > 1 else 2 * NEARNESS
        run = range(place, max(place - count * stride, 0), -stride)
        places += run
        place, stride = place - count * stride, 2 * stride
    return places[::-1]


def block_digests(tokens: Sequence[int], context: Context, blocks: int | None = None) -> bytes:
    """The digest at each mark of a history of `blocks` (default: of these tokens), each over all tokens
    up to the mark, joined. Marks beyond the tokens are left out."""
    step = context.block_size * 4
    running = blake2b(context.salt(), digest_size=BLOCK_DIGEST_BYTES)
    packed = memoryview(_pack(tokens))
    digests, start = [], 0
    for mark in marks(len(packed) // step if blocks is None else blocks):
        if mark * step > len(packed):
            break
        running.update(packed[start : mark * step])
        digests.append(running.digest())
        start = mark * step
    return b"".join(digests)


def prompt_digest(tokens: Sequence[int], context: Context) -> bytes:
    """One digest over all tokens, for the reader that takes all blocks or none."""
    return blake2b(context.salt() + _pack(tokens), digest_size=PROMPT_DIGEST_BYTES).digest()


def common_blocks(mine: bytes, theirs: bytes, blocks: int) -> int:
    """How many leading blocks are proven equal, of a history of so many blocks with digests `theirs`."""
    width = BLOCK_DIGEST_BYTES
    common = 0
    for place, mark in enumerate(marks(blocks)):
        digest = mine[place * width : (place + 1) * width]
        if len(digest) < width or digest != theirs[place * width : (place + 1) * width]:
            break
        common = mark
    return common


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
