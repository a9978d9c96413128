"""PURE: one client request -> the facts that policy decides on. Bad requests end here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from starlette.datastructures import Headers

from toolkit.router.refusal import Refusal

Endpoint = Literal["chat", "completions"]

MAX_ID_CHARS = 256
ID_HEADERS = ("x-conversation-id", "x-session-id", "x-correlation-id")


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the router needs to know about a request.

    Attributes:
        body: the client's members, ours taken out; arrays and objects are already encoded.
        conversation: the client's name for its conversation, or None.
        key: the conversation's key in the map (scoped by credential and model), or None.
        transferable: one prompt and one choice, the only shape whose blocks one handle describes, and no
            log-probabilities of the prompt, which only an engine that computes all of it has.
    """

    endpoint: Endpoint
    body: dict[str, Any]
    stream: bool
    conversation: str | None
    key: bytes | None
    transferable: bool


def read_request(endpoint: Endpoint, raw: bytes, headers: Headers) -> RequestFacts:
    """Parses a body of /v1/chat/completions or /v1/completions.

    Raises:
        Refusal: 400, the body is not a JSON object, names a bad conversation or sets KV metadata.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"The request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "The request body must be a JSON object.")
    _refuse_kv_metadata(body)
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise Refusal(400, "stream must be true or false.", param="stream")
    conversation = _conversation(body, headers)
    transferable = _is_transferable(endpoint, body)
    key = None if conversation is None else _map_key(endpoint, conversation, body, headers)
    return RequestFacts(endpoint, _encoded(body), bool(stream), conversation, key, transferable)


def _encoded(body: dict[str, Any]) -> dict[str, Any]:
    """Arrays and objects as JSON text: encoded once, used in the prefill and in the decode body."""
    try:
        return {
            name: orjson.Fragment(orjson.dumps(value)) if isinstance(value, list | dict) else value
            for name, value in body.items()
        }
    except orjson.JSONEncodeError:
        raise Refusal(400, "The request body is nested too deeply.") from None


def _refuse_kv_metadata(body: dict[str, Any]) -> None:
    """A client that sets KV metadata could have prefill read another conversation's blocks."""
    # vLLM copies `vllm_xargs` into the very dictionary that it reads kv_transfer_params from.
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and "kv_transfer_params" in extra:
        raise Refusal(400, "vllm_xargs must not set kv_transfer_params.", param="vllm_xargs")
    if body.pop("kv_transfer_params", None) is not None:
        raise Refusal(
            400,
            "kv_transfer_params is set by the router and must not be sent by a client.",
            param="kv_transfer_params",
        )


def _conversation(body: dict[str, Any], headers: Headers) -> str | None:
    if "conversation_id" in body:
        named = body.pop("conversation_id")
        if not isinstance(named, str) or not 0 < len(named) <= MAX_ID_CHARS:
            raise Refusal(
                400,
                f"conversation_id must be a string of 1 to {MAX_ID_CHARS} characters.",
                param="conversation_id",
            )
        return named
    for header in ID_HEADERS:
        value = headers.get(header)
        if value:
            if len(value) > MAX_ID_CHARS:
                raise Refusal(400, f"Header {header} is longer than {MAX_ID_CHARS} characters.", param=header)
            return value
    cache_key = body.get("prompt_cache_key")
    return cache_key if isinstance(cache_key, str) and cache_key else None


def _is_transferable(endpoint: Endpoint, body: dict[str, Any]) -> bool:
    if body.get("use_beam_search") or body.get("n", 1) not in (None, 1):
        return False
    if body.get("prompt_logprobs") is not None:
        return False
    if endpoint == "completions":
        if body.get("echo") and body.get("logprobs") is not None:
            return False
        prompt = body.get("prompt")
        best_of = body.get("best_of", 1)
        if best_of not in (None, 1):
            return False
        # A list of integers is one prompt in tokens; a list of strings or of lists is several prompts.
        if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
            return False
    return True


def _map_key(endpoint: Endpoint, conversation: str, body: dict[str, Any], headers: Headers) -> bytes:
    """32 bytes; another credential, model, cache salt or endpoint is another conversation."""
    scope = [
        headers.getlist("authorization"),
        headers.getlist("x-api-key"),
        endpoint,
        body.get("model"),
        body.get("cache_salt"),
        conversation,
    ]
    return hashlib.sha256(repr(scope).encode("utf-8", "surrogatepass")).digest()
