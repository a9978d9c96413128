"""Hooks `splice` into vLLM's two OpenAI stream generators, for requests that carry KV parameters.

A request without them gets vLLM's own generator object, so its bytes cannot differ.
"""

import functools
import inspect
import time
from logging import Logger
from typing import Any

from pd_connector.splice import Watch, splice
from pd_connector.versions import RefusedError

_NEEDED = ("request", "result_generator", "request_id", "model_name")


def install(logger: Logger) -> None:
    """Raises RefusedError where vLLM's generators are not what this knows. May be called again."""
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse
        from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
        from vllm.entrypoints.openai.completion.protocol import CompletionStreamResponse
        from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    except ImportError as error:
        raise RefusedError(
            f"pd-connector: this vLLM has no OpenAI serving where it is known: {error}"
        ) from error

    chat = wrap(
        OpenAIServingChat,
        "chat_completion_stream_generator",
        ChatCompletionStreamResponse,
        "chat.completion.chunk",
    )
    completions = wrap(
        OpenAIServingCompletion, "completion_stream_generator", CompletionStreamResponse, "text_completion"
    )
    logger.info("pd-connector: KV handle in streams: chat %s, completions %s", chat, completions)


def wrap(serving: Any, method: str, chunk: Any, kind: str) -> str:
    """Replace the method of the serving class; answers "ours", or "native" where vLLM does it itself."""
    if "kv_transfer_params" in chunk.model_fields:
        return "native"
    stock = getattr(serving, method, None)
    if hasattr(stock, "pd_connector_stock"):
        return "ours"
    if stock is None or not inspect.isasyncgenfunction(stock):
        raise RefusedError(
            f"pd-connector: {serving.__name__}.{method} is not the generator it is known to be"
        )
    signature = inspect.signature(stock)
    if missing := [name for name in _NEEDED if name not in signature.parameters]:
        raise RefusedError(f"pd-connector: {serving.__name__}.{method} has no parameter {', '.join(missing)}")

    @functools.wraps(stock)
    def generator(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments
        # Several prompts in one request would be several handles for one member.
        if not given["request"].kv_transfer_params or given.get("num_prompts", 1) != 1:
            return stock(self, *args, **kwargs)
        watch = given["result_generator"] = Watch(given["result_generator"])
        head = {
            "id": given["request_id"],
            "object": kind,
            "created": given.get("created_time", int(time.time())),
            "model": given["model_name"],
        }
        return splice(stock(*bound.args, **bound.kwargs), watch, head)

    generator.pd_connector_stock = stock  # type: ignore[attr-defined]
    setattr(serving, method, generator)
    return "ours"
