"""One client request -> what the router decides on and sends to the engines. Bad requests end here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from toolkit.router.paths.choice import Path
from toolkit.router.request.body import BadBody, Body
from toolkit.router.request.dialects import DIALECTS, SERVER_TOOLS, Dialect, Endpoint
from toolkit.router.request.identity import Keys, Scope, keys_of_messages, keys_of_name, keys_of_prompt
from toolkit.router.request.refusal import Refusal

MAX_ID_CHARS = 256
ID_HEADERS = (b"x-conversation-id", b"x-session-id", b"x-correlation-id")
PATH_HEADER = b"x-kv-path"
# Metadata of disaggregated serving: whoever sets it may have an engine read another one's memory.
_OURS = ("kv_transfer_params", "ec_transfer_params")
# A history of more is known by its name only: each costs a digest.
MOST_ITEMS = 10_000
# vLLM leaves system blocks that begin so out of the prompt: the client puts another digest into each request.
_BILLING = "x-anthropic-billing-header"


class HasHeaders(Protocol):
    """The headers of a request; names are lower case."""

    def get(self, name: bytes) -> bytes | None:
        """The first value."""


@dataclass(slots=True)
class Facts:
    """What the router needs to know about a request.

    Attributes:
        members: the client's members without ours and without `large`, as JSON text.
        large: the members that make up most of the prompt, as JSON text.
        conversation: the client's name for its conversation, or None.
        keys: where the conversation may be found, and where this turn is saved.
        forced: the path that the client asks for.
        transferable: its blocks can be handed over between engines: one prompt, one choice, one generation.
        previous_response: the stored response that this one continues; only the engine that has it can.
        stores: a response that the engine may keep under its id.
        history_bytes: length of the JSON text of all members that make up the prompt.
        model: "" where the client names none.
    """

    endpoint: Endpoint
    members: dict[str, msgspec.Raw]
    large: dict[str, memoryview]
    stream: bool
    conversation: str | None
    keys: Keys
    forced: Path | None
    transferable: bool
    previous_response: str | None
    stores: bool
    history_bytes: int
    model: str

    @property
    def dialect(self) -> Dialect:
        """The endpoint's names for things."""
        return DIALECTS[self.endpoint]

    @property
    def tells_handle(self) -> bool:
        """Whether decode's answer will name the blocks that it keeps."""
        return not self.stream or self.dialect.stream_handle


def read_request(endpoint: Endpoint, raw: bytes, headers: HasHeaders, tenant: bytes) -> Facts:
    """Parses the body of a request to one of the four endpoints.

    What only an engine can judge (an unknown model, a message of a strange form) is left to it.

    Raises:
        Refusal: 400, the body is not a JSON object, sets KV metadata, or names a bad conversation or path.
    """
    try:
        return _read(endpoint, Body(raw), headers, tenant)
    except BadBody as error:
        raise Refusal(400, str(error)) from None
    except RecursionError:
        raise Refusal(400, "The request body is nested too deeply.") from None


def _read(endpoint: Endpoint, body: Body, headers: HasHeaders, tenant: bytes) -> Facts:
    _refuse_metadata(body)
    if endpoint == Endpoint.RESPONSES:
        # vLLM would store the response under it, also where somebody else's is.
        body.pop("request_id")
    body.check(DIALECTS[endpoint].history, DIALECTS[endpoint].large)
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise Refusal(400, "stream must be true or false.", param="stream")
    conversation = _conversation(body, headers)
    model, previous = body.get("model"), body.get("previous_response_id")
    model = model if isinstance(model, str) else ""
    members, large = _divided(body, DIALECTS[endpoint].large)
    return Facts(
        endpoint=endpoint,
        members=members,
        large=large,
        stream=bool(stream),
        conversation=conversation,
        keys=_keys(endpoint, _scope(endpoint, body, tenant, model), body, conversation),
        forced=_forced(headers),
        transferable=_is_transferable(endpoint, body),
        previous_response=previous if endpoint == Endpoint.RESPONSES and isinstance(previous, str) else None,
        stores=endpoint == Endpoint.RESPONSES and body.get("store") is not False,
        history_bytes=sum(map(len, large.values())),
        model=model,
    )


def _divided(body: Body, large: frozenset[str]) -> tuple[dict[str, msgspec.Raw], dict[str, memoryview]]:
    """The members that are not large, and those that are."""
    small = {name: text for name, text in body.texts.items() if name not in large}
    return small, {name: memoryview(text) for name, text in body.texts.items() if name in large}


def _refuse_metadata(body: Body) -> None:
    """A client that sets KV metadata could have prefill read another conversation's blocks."""
    # vLLM copies `vllm_xargs` into the very dictionary that it reads the transfer parameters from.
    extra = body.get("vllm_xargs")
    for name in _OURS:
        if isinstance(extra, dict) and name in extra:
            raise Refusal(400, f"vllm_xargs must not set {name}.", param="vllm_xargs")
        if body.pop(name) is not None:
            raise Refusal(400, f"{name} is set by the router and must not be sent by a client.", param=name)


def _conversation(body: Body, headers: HasHeaders) -> str | None:
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
                name = header.decode()
                raise Refusal(400, f"Header {name} is longer than {MAX_ID_CHARS} characters.", param=name)
            return value.decode("latin-1")
    return None


def _forced(headers: HasHeaders) -> Path | None:
    value = headers.get(PATH_HEADER)
    if not value:
        return None
    try:
        return Path(value.decode("latin-1").strip().lower())
    except ValueError:
        name = PATH_HEADER.decode()
        raise Refusal(400, f"Header {name} must be one of {', '.join(Path)}.", param=name) from None


def _is_transferable(endpoint: Endpoint, body: Body) -> bool:
    """Whether one handle describes this request's blocks, and every engine renders the same prompt for it.

    Several choices or prompts do not: one set of transfer parameters describes the blocks of one sequence.
    """
    if body.get("n", 1) not in (None, 1) or body.get("use_beam_search"):
        return False
    # vLLM 0.29 dies where part of a prompt is not computed whose log-probabilities are asked for. Of chat,
    # `echo` alone asks for them (with top_logprobs, 0 by default).
    if body.get("prompt_logprobs") is not None or (body.get("echo") and _echo_has_logprobs(endpoint, body)):
        return False
    # A negative number, like a response's "auto", keeps what max_tokens leaves: more on prefill's leg.
    keep = body.get("truncate_prompt_tokens")
    if keep is not None and not (isinstance(keep, int) and keep >= 0):
        return False
    if endpoint == Endpoint.COMPLETIONS:
        return _is_one_prompt(body)
    if endpoint == Endpoint.RESPONSES:
        return _is_one_generation(body)
    # /v1/messages parses the arguments of a named tool's call: those of one token are no JSON, so it fails.
    choice = body.get("tool_choice") if endpoint == Endpoint.MESSAGES else None
    return not (isinstance(choice, dict) and choice.get("type") == "tool")


def _echo_has_logprobs(endpoint: Endpoint, body: Body) -> bool:
    return endpoint == Endpoint.CHAT or body.get("logprobs") is not None


def _is_one_prompt(body: Body) -> bool:
    if body.get("best_of", 1) not in (None, 1) or body.text("prompt_embeds"):
        return False
    if not body.is_list("prompt"):
        return True
    prompt = body.get("prompt")
    # A list of integers is one prompt in tokens; a list of strings or of lists is several prompts.
    return len(prompt) <= 1 or isinstance(prompt[0], int)


def _is_one_generation(body: Body) -> bool:
    """Of a response: nothing that another engine keeps, and nothing that the engine does in between."""
    if body.get("previous_response_id") is not None or body.get("background"):
        return False
    if body.get("truncation", "disabled") != "disabled":
        return False
    tools = body.get("tools")
    return not isinstance(tools, list) or all(
        not isinstance(tool, dict) or not _runs_on_the_engine(tool.get("type")) for tool in tools
    )


def _runs_on_the_engine(kind: object) -> bool:
    return isinstance(kind, str) and kind in SERVER_TOOLS


def _scope(endpoint: Endpoint, body: Body, tenant: bytes, model: str) -> Scope:
    salt, cache_key = body.get("cache_salt"), body.get("prompt_cache_key")
    before = [body.text(name) for name in DIALECTS[endpoint].before]
    blocks = (
        body.items("system", MOST_ITEMS) if endpoint == Endpoint.MESSAGES and body.is_list("system") else None
    )
    if blocks is not None:
        before[0] = b",".join(block for block in blocks if not _is_billing(block))
    return Scope(
        tenant,
        str(endpoint),
        model,
        salt if isinstance(salt, str) else None,
        cache_key if isinstance(cache_key, str) and cache_key else None,
        tuple(before),
    )


def _is_billing(block: bytes) -> bool:
    if _BILLING.encode() not in block:
        return False
    try:
        found = msgspec.json.decode(block)
    except msgspec.DecodeError:
        return False
    text = found.get("text") if isinstance(found, dict) else None
    return isinstance(text, str) and text.startswith(_BILLING)


def _keys(endpoint: Endpoint, scope: Scope, body: Body, name: str | None) -> Keys:
    if endpoint == Endpoint.COMPLETIONS:
        return _keys_of_prompt(scope, body, name)
    history = DIALECTS[endpoint].history
    if body.is_list(history):
        items = body.items(history, MOST_ITEMS)
        return keys_of_name(scope, name) if items is None else keys_of_messages(scope, items, name)
    if endpoint == Endpoint.RESPONSES and body.is_string(history):
        return keys_of_messages(scope, [body.text(history)], name)
    return keys_of_name(scope, name)


def _keys_of_prompt(scope: Scope, body: Body, name: str | None) -> Keys:
    text = body.text("prompt")
    if body.is_list("prompt"):
        prompt = body.get("prompt")
        if not prompt or not _is_one_prompt(body):
            return keys_of_name(scope, name)
        # The blanks between tokens are none of the prompt's.
        text = msgspec.json.encode(prompt if isinstance(prompt[0], int) else prompt[0])
    return keys_of_prompt(scope, text, name)
