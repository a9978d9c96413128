"""Block ids as text: a long conversation's handle stays small whatever order its blocks have.

Runs cost almost nothing, and ids in no order cost their own bits. Pure: no vLLM.

Layout (little-endian): the number of ids in 4 bytes, then frames of up to 64 ids. A frame starts with one
byte: its low 6 bits are a width in bits. Without the top bit the ids follow, each of that width. With the
top bit the first id follows in 4 bytes, then the steps to the others, less one and zigzag-coded, each of that
width. Values of one frame are packed into one number, the first lowest, and padded to whole bytes.
"""

import base64
import binascii
import itertools
from collections.abc import Sequence

MOST_IDS = 1 << 22
"""A longer list is no block list of any engine; it would only cost memory to unpack."""
ID_BITS = 31
_FRAME = 64
_STEPS = 0x80
_WIDTH = 0x3F


def pack(ids: Sequence[int]) -> str:
    """Raises ValueError for an id outside 0 to 2^31 - 1, and for too many ids."""
    if len(ids) > MOST_IDS or (ids and not 0 <= min(ids) <= max(ids) < 1 << ID_BITS):
        raise ValueError("not a list of block ids")
    parts = [len(ids).to_bytes(4, "little")]
    for start in range(0, len(ids), _FRAME):
        frame = ids[start : start + _FRAME]
        parts.append(min(_as_ids(frame), _as_steps(frame), key=len))
    return base64.b64encode(b"".join(parts)).decode()


def unpack(text: str, most: int = MOST_IDS) -> list[int]:
    """The reverse; raises ValueError for what `pack` cannot have made, and for more than `most` ids."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not base64") from error
    count, place = int.from_bytes(data[:4], "little"), 4
    if len(data) < 4 or count > most or count > len(data) * _FRAME:
        raise ValueError("not a list of block ids")
    ids: list[int] = []
    while len(ids) < count:
        size = min(_FRAME, count - len(ids))
        frame, place = _read_frame(data, place, size)
        ids += frame
    if place != len(data):
        raise ValueError("more bytes than ids")
    return ids


def _as_ids(frame: Sequence[int]) -> bytes:
    width = max(frame).bit_length()
    return bytes([width]) + _pack_values(frame, width)


def _as_steps(frame: Sequence[int]) -> bytes:
    steps = [_zigzag(b - a - 1) for a, b in itertools.pairwise(frame)]
    width = max(steps, default=0).bit_length()
    return bytes([_STEPS | width]) + frame[0].to_bytes(4, "little") + _pack_values(steps, width)


def _read_frame(data: bytes, place: int, size: int) -> tuple[list[int], int]:
    if place >= len(data):
        raise ValueError("fewer bytes than ids")
    head, place = data[place], place + 1
    width = head & _WIDTH
    if not head & _STEPS:
        return _checked(_read_values(data, place, size, width)), place + _bytes(size, width)
    ids = [int.from_bytes(data[place : place + 4], "little")]
    place += 4
    for step in _read_values(data, place, size - 1, width):
        ids.append(ids[-1] + 1 + _unzigzag(step))
    return _checked(ids), place + _bytes(size - 1, width)


def _checked(ids: list[int]) -> list[int]:
    if not 0 <= min(ids) <= max(ids) < 1 << ID_BITS:
        raise ValueError("not a block id")
    return ids


def _pack_values(values: Sequence[int], width: int) -> bytes:
    packed = 0
    for value in reversed(values):
        packed = packed << width | value
    return packed.to_bytes(_bytes(len(values), width), "little")


def _read_values(data: bytes, place: int, size: int, width: int) -> list[int]:
    end = place + _bytes(size, width)
    if end > len(data):
        raise ValueError("fewer bytes than ids")
    packed, mask = int.from_bytes(data[place:end], "little"), (1 << width) - 1
    return [packed >> width * index & mask for index in range(size)]


def _bytes(size: int, width: int) -> int:
    return (size * width + 7) // 8


def _zigzag(value: int) -> int:
    return value * 2 if value >= 0 else -value * 2 - 1


def _unzigzag(value: int) -> int:
    return value // 2 if value % 2 == 0 else -(value // 2) - 1
