"""Answers that the router itself gives instead of an engine, in the form that the endpoint's clients read."""

from __future__ import annotations

from typing import Any, Literal

import orjson

Dialect = Literal["openai", "responses", "anthropic"]
"""The form of an error: OpenAI's, OpenAI's with the typed events of /v1/responses, Anthropic's."""

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    502: "upstream_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Refusal(Exception):
    """The router ends this request with an error of its own.

    Attributes:
        status: the HTTP status.
        message: what is wrong, where, and what to do; goes to the client as it is.
        param: the offending member or header of the request.
        retry_after_s: when it is worth trying again (the Retry-After header), seconds.
        allow: the methods that there are, of a 405 (the Allow header).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow

    def body(self, dialect: Dialect = "openai") -> bytes:
        """The error as a whole answer."""
        return error_body(self.status, self.message, self.param, dialect)

    def event(self, dialect: Dialect = "openai") -> bytes:
        """The error as one server-sent event, for a stream that has begun."""
        if dialect == "openai":
            return b"data: " + self.body() + b"\n\n"
        if dialect == "anthropic":
            return b"event: error\ndata: " + self.body("anthropic") + b"\n\n"
        error = _openai_error(self.status, self.message, self.param)
        # OpenAI documents the members beside `type`, its service and its clients know `error` too.
        event = {**error, "type": "error", "code": str(self.status), "error": error}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"


def error_body(status: int, message: str, param: str | None = None, dialect: Dialect = "openai") -> bytes:
    """`{"error": {message, type, param, code}}`, or Anthropic's `{"type": "error", "error": {...}}`."""
    if dialect != "anthropic":
        return orjson.dumps({"error": _openai_error(status, message, param)})
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def _openai_error(status: int, message: str, param: str | None) -> dict[str, Any]:
    kind = _OPENAI_TYPES.get(status, "internal_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": status}
