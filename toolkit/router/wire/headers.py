"""PURE: header fields, which of them travel through the router, and the request id."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

RawHeaders = list[tuple[bytes, bytes]]
"""Fields in order; names in lower case, values without surrounding blanks."""

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Set anew for each leg, meant for the router alone, or not understood by the relay (a compressed answer
# could not be searched).
_NOT_TO_ENGINE = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"content-encoding",
    b"accept-encoding",
    b"expect",
    b"x-request-id",
    b"x-conversation-id",
    b"x-kv-path",
}
_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
_NOT_TO_CLIENT = _HOP_BY_HOP | {b"content-length", b"date", b"server", b"x-request-id"}
_NAMES_NOTHING = frozenset({b"keep-alive", b"close"})
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/@+=-]{1,128}")


class Headers:
    """The header fields of one message; names in lower case."""

    __slots__ = ("_first", "raw")

    def __init__(self, raw: RawHeaders) -> None:
        self.raw = raw
        self._first: dict[bytes, bytes] | None = None

    def get(self, name: bytes) -> bytes | None:
        """The value of the first field of that name."""
        first = self._first
        if first is None:
            first = self._first = dict(reversed(self.raw))
        return first.get(name)

    @property
    def repeats(self) -> bool:
        """Whether two fields have the same name."""
        self.get(b"")
        return self._first is None or len(self._first) < len(self.raw)

    def all(self, name: bytes) -> list[bytes]:
        """The values of every field of that name, in order."""
        return [value for field, value in self.raw if field == name]


def request_id(headers: Headers) -> str:
    """The client's X-Request-Id if it is short and harmless in logs and headers, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{random.getrandbits(128):032x}"


def to_engine(headers: Headers, request_id: str, authorization: bytes | None) -> bytes:
    """The client's end-to-end headers as ready lines, with our request id; without host and content-length.

    authorization: the engines' own credential; it replaces what the client sent (Authorization and
        X-Api-Key), and an empty one only removes that. None passes the client's on.
    """
    dropped = _NOT_TO_ENGINE if authorization is None else _NOT_TO_ENGINE | _CREDENTIALS
    named = _named_by_connection(headers.raw) if _names_fields(headers) else ()
    lines: list[bytes] = []
    for name, value in headers.raw:
        if name not in dropped and name not in named:
            lines += (name, b": ", value, b"\r\n")
    if authorization:
        lines += (b"authorization: ", authorization, b"\r\n")
    lines += (b"accept-encoding: identity\r\nx-request-id: ", request_id.encode("ascii"), b"\r\n")
    return b"".join(lines)


def to_client(raw: RawHeaders) -> RawHeaders:
    """An engine's end-to-end headers; framing, date and request id are set anew."""
    named = _named_by_connection(raw)
    return [field for field in raw if field[0] not in _NOT_TO_CLIENT and field[0] not in named]


def _names_fields(headers: Headers) -> bool:
    connection = headers.get(b"connection")
    return connection is not None and connection.lower() not in _NAMES_NOTHING


def _named_by_connection(raw: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    return {
        named.strip().lower() for name, value in raw if name == b"connection" for named in value.split(b",")
    }
