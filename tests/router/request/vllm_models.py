"""Run by the engine's own Python: what vLLM makes of pairs of bodies, client's and prefill's, on stdin.

Prints for each pair what differs in what shapes the prompt, and the tokens that prefill would generate.
"""

import dataclasses
import json
import sys

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest


class ModelConfig:
    """What the tokenizer's parameters ask of the engine's configuration."""

    max_model_len = 40_960


def parsed(endpoint, body):
    if endpoint == "/v1/completions":
        return CompletionRequest.model_validate(body)
    if endpoint == "/v1/responses":
        return ResponsesRequest.model_validate(body)
    if endpoint == "/v1/messages":
        return AnthropicServingMessages.to_chat_completion_request(
            AnthropicMessagesRequest.model_validate(body)
        )
    return ChatCompletionRequest.model_validate(body)


def shape(request):
    """All that the prompt is rendered and tokenized from."""
    names = ("messages", "prompt", "input", "instructions", "tools", "tool_choice", "cache_salt", "reasoning")
    found = {name: repr(getattr(request, name, None)) for name in names}
    tokenizing = dataclasses.asdict(request.build_tok_params(ModelConfig))
    # Only a limit of the prompt's length, as nothing is truncated to it.
    del tokenizing["max_output_tokens"], tokenizing["max_output_tokens_param"]
    # Keeps the text beside the tokens.
    del tokenizing["needs_detokenization"]
    found |= tokenizing
    if hasattr(request, "build_chat_params"):
        found |= {
            name: repr(value) for name, value in vars_of(request.build_chat_params(None, "auto")).items()
        }
    return found


def vars_of(params):
    return {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}


def most_tokens(request):
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        if getattr(request, name, None) is not None:
            return getattr(request, name)
    return None


answers = []
for endpoint, client, prefill in json.load(sys.stdin):
    whole, leg = shape(parsed(endpoint, client)), parsed(endpoint, prefill)
    sampling = leg.to_sampling_params(1, {})
    answers.append(
        {
            "differs": sorted(name for name, value in shape(leg).items() if whole[name] != value),
            "tokens": most_tokens(leg),
            "stream": bool(leg.stream),
            "transfer": sampling.extra_args["kv_transfer_params"],
            "store": getattr(leg, "store", None),
        }
    )
print(json.dumps(answers))
