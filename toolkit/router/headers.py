"""PURE: which HTTP headers travel through the router, and the request id."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

from multidict import CIMultiDict
from starlette.datastructures import Headers

RawHeaders = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Set anew for each leg, or not understood by the relay (a compressed stream could not be cleaned).
_NOT_TO_ENGINE = _HOP_BY_HOP | {
    "host",
    "content-length",
    "content-encoding",
    "accept-encoding",
    "expect",
    "x-request-id",
    "x-conversation-id",
}
_NOT_TO_CLIENT = _HOP_BY_HOP | {"content-length", "date", "server", "x-request-id"}
_SANE_ID = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}")


def request_id(headers: Headers) -> str:
    """The client's X-Request-Id if it is short and harmless in logs and headers, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex


def to_engine(headers: Headers, request_id: str) -> CIMultiDict[str]:
    """The client's end-to-end headers (credential and trace context among them) with our request id."""
    named = _named_by_connection(headers.getlist("connection"))
    sent: CIMultiDict[str] = CIMultiDict()
    for raw_name, raw_value in headers.raw:
        name = raw_name.decode("latin-1").lower()
        if name not in _NOT_TO_ENGINE and name not in named:
            sent.add(name, _text(raw_value))
    sent["X-Request-Id"] = request_id
    sent["Accept-Encoding"] = "identity"
    return sent


def to_client(headers: Iterable[tuple[str, str]]) -> RawHeaders:
    """An engine's end-to-end headers as ASGI wants them."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = _named_by_connection(value for name, value in pairs if name == "connection")
    return [
        (name.encode("latin-1"), value.encode("utf-8", "surrogateescape"))
        for name, value in pairs
        if name not in _NOT_TO_CLIENT and name not in named
    ]


def _text(value: bytes) -> str:
    """As the HTTP client will encode it again (UTF-8), so that the usual bytes survive."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _named_by_connection(values: Iterable[str]) -> set[str]:
    return {name.strip().lower() for value in values for name in value.split(",")}
