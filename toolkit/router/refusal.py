"""Answers that the router itself gives instead of an engine: errors in the OpenAI form."""

from __future__ import annotations

import orjson

_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    502: "upstream_error",
    503: "service_unavailable_error",
}


class Refusal(Exception):
    """The router ends this request with an error of its own. `param` names the offending field."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """`{"error": {message, type, param, code}}` as JSON."""
        return error_body(self.status, self.message, self.param)

    def event(self) -> bytes:
        """The same as one server-sent event."""
        return b"data: " + self.body() + b"\n\n"


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "internal_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})
