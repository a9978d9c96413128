"""The router's own description of its API, for clients' tools and for the fuzzer.
What only engines judge is open."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson

from toolkit import __version__

_OBJECT = {"application/json": {"schema": {"type": "object"}}}


@cache
def description() -> bytes:
    """OpenAPI 3.1, as JSON."""
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "pd-toolkit router",
                "version": __version__,
                "description": "KV-aware prefill/decode router: the engines' OpenAI and Anthropic APIs",
            },
            "paths": {
                "/v1/chat/completions": _generation("messages", _messages()),
                "/v1/completions": _generation("prompt", _prompt()),
                "/v1/responses": _generation("input", {"type": ["string", "array"]}),
                "/v1/messages": _generation("messages", _messages(), required=("max_tokens",)),
                "/v1/messages/count_tokens": {"post": _operation("counted", body=_OBJECT)},
                "/tokenize": {"post": _operation("tokenized", body=_OBJECT)},
                "/detokenize": {"post": _operation("detokenized", body=_OBJECT)},
                "/v1/models": {"get": _operation("the engines' models")},
                "/version": {"get": _operation("the engines' version")},
                "/health": {"get": _operation("whether a prefill and a decode engine take requests")},
                "/metrics": {"get": _operation("Prometheus metrics", media="text/plain")},
                "/router/state": {"get": _operation("what the operator page shows")},
            },
        }
    )


def _generation(history: str, schema: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    properties = {
        "model": {"type": "string"},
        history: schema,
        "stream": {"type": ["boolean", "null"]},
        "max_tokens": {"type": "integer", "minimum": 1},
        "conversation_id": {"type": "string", "minLength": 1, "maxLength": 256},
        "prompt_cache_key": {"type": "string"},
        "n": {"type": ["integer", "null"]},
        "stop": {"type": ["string", "array", "null"]},
        "tools": {"type": ["array", "null"]},
    }
    body = {"type": "object", "properties": properties, "required": ["model", history, *required]}
    operation = _operation("the engine's answer", body={"application/json": {"schema": body}})
    operation["parameters"] = [
        _header("X-Conversation-Id", {"type": "string", "maxLength": 256}),
        _header("X-KV-Path", {"enum": ["prefill", "readback", "decode-local"]}),
        _header("X-Request-Id", {"type": "string"}),
    ]
    return {"post": operation}


def _messages() -> dict[str, Any]:
    message = {"type": "object", "properties": {"role": {"type": "string"}}, "required": ["role"]}
    return {"type": "array", "items": message}


def _prompt() -> dict[str, Any]:
    return {"type": ["string", "array"], "items": {"type": ["string", "integer", "array"]}}


def _header(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": schema}


def _operation(
    what: str, *, body: dict[str, Any] | None = None, media: str = "application/json"
) -> dict[str, Any]:
    error = {
        "description": "an error of the router, or of the engine that judged the request",
        "content": _OBJECT,
    }
    operation: dict[str, Any] = {
        "responses": {"200": {"description": what, "content": {media: {}}}, "default": error}
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    return operation
