"""What differs between the four endpoints, in one table. Facts about vLLM were read in its source, 0.29.0.

The request to prefill ("prefill leg") must render to exactly the tokens of the client's request, so whatever
may shape the prompt stays in it, also where only one model's renderer looks at it: `tools`, `tool_choice` and
`response_format` (Kimi K3 renders both), `text`, `reasoning*`, `chat_template*`, `documents`,
`truncate_prompt_tokens`. What only concerns the generated tokens goes where it could make a one-token answer
fail, cost time or make the answer large:

- `min_tokens` > `max_tokens`, and `stream_options` without `stream`, are refused; `logprob_token_ids` and
  `top_logprobs` need `logprobs`, so they go together
- vLLM ends a request that meets a `stop` string by an abort, which leaves no blocks for decode
- `echo`, `return_token_ids`, `return_prompt_text` and `enable_response_messages` answer with the whole
  prompt
- `structured_outputs` (and `response_format` of a plain prompt) would compile a grammar for one token. One
  that stays costs its compilation: chat and responses answer 200 for the unfinished JSON of one token
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from toolkit.router.request import refusal


class Endpoint(StrEnum):
    """The URL paths of the requests that have a prompt."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one endpoint names things.

    Attributes:
        history: the member whose items grow from turn to turn.
        before: members that make up the prompt besides it, in a fixed order; most render ahead of it.
        large: the members of these that are encoded once and sent as they are to both engines.
        one_token: what makes a request a prefill leg.
        generation: members that the prefill leg leaves out.
        stream_handle: whether decode's stream names the blocks that it keeps. With our connector chat and
            completions do; vLLM itself puts them into `response.completed`; the converter that makes
            /v1/messages of a chat stream reads its own members of each chunk and drops the others.
        nests: the member of an event or answer that may hold the KV metadata beside the top level.
        takes_prompt_ids: whether `prompt_token_ids` of the transfer parameters spare decode the tokenizing.
        errors: the form of errors.
        ends: how the line may begin that ends a complete stream.
    """

    history: str
    before: tuple[str, ...]
    large: frozenset[str]
    one_token: Mapping[str, Any]
    generation: frozenset[str]
    stream_handle: bool
    nests: str | None
    takes_prompt_ids: bool
    errors: refusal.Dialect
    ends: tuple[bytes, ...]


_TEMPLATE = ("chat_template", "chat_template_kwargs")
_CHAT_AND_COMPLETIONS = frozenset(
    (
        *("max_completion_tokens", "min_tokens", "stop", "stream_options", "structured_outputs"),
        *("logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs"),
        *("echo", "return_token_ids", "return_prompt_text"),
    )
)

DIALECTS: Mapping[Endpoint, Dialect] = {
    Endpoint.CHAT: Dialect(
        history="messages",
        before=("tools", "documents", *_TEMPLATE),
        large=frozenset(("messages", "tools", "documents")),
        one_token={"stream": False, "max_tokens": 1},
        generation=_CHAT_AND_COMPLETIONS,
        stream_handle=True,
        nests=None,
        takes_prompt_ids=True,
        errors="openai",
        ends=(b"data: [DONE]",),
    ),
    Endpoint.COMPLETIONS: Dialect(
        history="prompt",
        before=(),
        large=frozenset(("prompt",)),
        one_token={"stream": False, "max_tokens": 1},
        generation=_CHAT_AND_COMPLETIONS | {"response_format"},
        stream_handle=True,
        nests=None,
        takes_prompt_ids=False,
        errors="openai",
        ends=(b"data: [DONE]",),
    ),
    # `store` is true by default, and an engine that stores never forgets.
    Endpoint.RESPONSES: Dialect(
        history="input",
        before=("instructions", "tools", "previous_input_messages", *_TEMPLATE),
        large=frozenset(("input", "instructions", "tools", "previous_input_messages")),
        one_token={"stream": False, "max_output_tokens": 1, "store": False},
        generation=frozenset(
            ("include", "top_logprobs", "stop", "structured_outputs", "enable_response_messages")
        ),
        stream_handle=True,
        nests="response",
        takes_prompt_ids=True,
        errors="responses",
        # vLLM 0.29 writes only the first, whatever the response's status.
        ends=(b"event: response.completed", b"event: response.incomplete", b"event: response.failed"),
    ),
    Endpoint.MESSAGES: Dialect(
        history="messages",
        before=("system", "tools", *_TEMPLATE),
        large=frozenset(("messages", "system", "tools")),
        one_token={"stream": False, "max_tokens": 1},
        generation=frozenset(("stop_sequences",)),
        stream_handle=False,
        nests=None,
        takes_prompt_ids=True,
        errors="anthropic",
        ends=(b"event: message_stop",),
    ),
}

# Run by vLLM's own tool server between several generations of one request, which all would get the same
# transfer parameters and of which only the last one's handle is answered.
SERVER_TOOLS = frozenset(("web_search_preview", "code_interpreter", "container", "mcp"))
