"""PURE: a recorded engine answer, taken apart: what the stub engine is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; `pieces` are the chunks of its content, one piece where it has no chunks."""

    status: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    pieces: tuple[bytes, ...]

    @property
    def content(self) -> bytes:
        return b"".join(self.pieces)

    def document(self) -> dict[str, Any]:
        """The whole answer's JSON object."""
        return dict(json.loads(self.content))

    def events(self) -> list[dict[str, Any]]:
        """The JSON objects of a stream; raises ValueError where a chunk is not exactly one event."""
        if not self.pieces or self.pieces[-1] != DONE:
            raise ValueError("the stream does not end with [DONE]")
        return [_event(piece) for piece in self.pieces[:-1]]


def recorded(name: str) -> Answer:
    """The answer that was recorded as `name`."""
    return parse((FOLDER / f"{name}.http").read_bytes())


def parse(raw: bytes) -> Answer:
    """Raises ValueError where `raw` is not exactly one answer."""
    head, blank, rest = raw.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    if not blank or not status.startswith(b"HTTP/1.1 "):
        raise ValueError(f"no HTTP answer: {raw[:80]!r}")
    headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip()))
    if (b"transfer-encoding", b"chunked") in headers:
        return Answer(status, tuple(headers), tuple(_chunks(rest)))
    if (b"content-length", str(len(rest)).encode()) not in headers:
        raise ValueError(f"{len(rest)} bytes are not the announced length")
    return Answer(status, tuple(headers), (rest,))


def _chunks(rest: bytes) -> list[bytes]:
    chunks = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if rest[length : length + 2] != b"\r\n":
            raise ValueError("a chunk has not its announced length")
        if length == 0:
            break
        chunks.append(rest[:length])
        rest = rest[length + 2 :]
    if rest != b"\r\n":
        raise ValueError("bytes after the last chunk")
    return chunks


def _event(piece: bytes) -> dict[str, Any]:
    if not piece.startswith(b"data: {") or not piece.endswith(b"}\n\n"):
        raise ValueError(f"not one event: {piece[:80]!r}")
    return dict(json.loads(piece[6:]))
