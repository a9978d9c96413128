"""One chat request as a user's program makes it: the real openai client, streaming, no retries."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, cast

from openai import APIStatusError, AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from toolkit.bench.script import Message
from toolkit.errors import ToolkitError

# A long prompt on a CPU takes minutes; a longer silence than this is a hang.
REQUEST_TIMEOUT_S = 900.0
ERROR_LENGTH = 300
FIRST_TOP = 5
TOKEN_ID = "token_id:"
# A sweep measures prefill's read from decode; left to itself the router lets decode answer short turns alone.
READ_BACK = {"X-KV-Path": "readback"}


@dataclass
class Reply:
    """What came back. Times in milliseconds since the request was sent."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    first_logprob: float | None = None
    first_top: dict[int, float] | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    prefill_ms: float | None = None
    kv_read_tokens: int | None = None
    path: str | None = None

    @property
    def digest(self) -> str:
        """Over token ids where the engine gives them: different tokens may spell the same text."""
        output = self.tokens or self.text
        return hashlib.sha256(json.dumps([output, self.finish_reason]).encode()).hexdigest()


class ChatClient:
    """Chat and tokenize at one router."""

    def __init__(self, router: str, model: str, output_tokens: int) -> None:
        self._router = router.rstrip("/")
        self._model = model
        self._output_tokens = output_tokens
        self._api_key = os.environ.get("OPENAI_API_KEY") or "none"
        self._client = AsyncOpenAI(
            base_url=f"{self._router}/v1", api_key=self._api_key, max_retries=0, timeout=REQUEST_TIMEOUT_S
        )

    async def close(self) -> None:
        await self._client.close()

    async def count_tokens(self, messages: list[Message]) -> int:
        """Prompt tokens of `messages`, by the engine's /tokenize. Raises ToolkitError if it has no answer."""
        body = {"model": self._model, "messages": messages, "add_generation_prompt": True}
        url = f"{self._router}/tokenize"
        try:
            answer = await self._client.post(url, cast_to=dict[str, Any], body=body)
            return int(answer["count"])
        except Exception as error:
            raise ToolkitError(
                f"cannot size prompts: POST {url}: {self.describe(error)}",
                next_step="check the router and its engines with `toolkit job logs`",
            ) from error

    async def ask(self, conversation_id: str, messages: list[Message]) -> Reply:
        """One turn. Raises what the openai client raises, or ToolkitError for a stream cut short."""
        reply = Reply()
        start = time.perf_counter()
        async with self._client.chat.completions.with_streaming_response.create(
            model=self._model,
            messages=cast(list[ChatCompletionMessageParam], messages),
            stream=True,
            stream_options={"include_usage": True},
            temperature=0,
            max_tokens=self._output_tokens,
            logprobs=True,
            # What a near-tie is told by, where first tokens part.
            top_logprobs=FIRST_TOP,
            # Token ids come with the logprobs. vLLM's return_token_ids would also send back the whole
            # prompt's ids ahead of the first token: time that belongs to neither leg.
            extra_body={
                "ignore_eos": True,
                "return_tokens_as_token_ids": True,
                "conversation_id": conversation_id,
            },
            extra_headers=READ_BACK,
        ) as response:
            reply.path = response.headers.get("X-KV-Path")
            prefill = response.headers.get("X-Prefill-Ms")
            reply.prefill_ms = None if prefill is None else float(prefill)
            read = response.headers.get("X-KV-Read-Tokens")
            reply.kv_read_tokens = None if read is None else int(read)
            async for chunk in await response.parse():
                if _add(reply, chunk) and not reply.ttft_ms:
                    reply.ttft_ms = (time.perf_counter() - start) * 1000
        reply.total_ms = (time.perf_counter() - start) * 1000
        if reply.finish_reason is None or not reply.output_tokens:
            raise ToolkitError("the stream ended without finish_reason or usage")
        return reply

    def describe(self, error: BaseException) -> str:
        """`error` in at most 300 characters, without the API key."""
        status = f" {error.status_code}" if isinstance(error, APIStatusError) else ""
        cause = f" ({error.__cause__})" if error.__cause__ is not None and str(error.__cause__) else ""
        text = f"{type(error).__name__}{status}: {error}{cause}"
        if self._api_key != "none":
            text = text.replace(self._api_key, "***")
        return " ".join(text.split())[:ERROR_LENGTH]


def _add(reply: Reply, chunk: Any) -> bool:
    """Takes one chunk in; whether it brought generated content (the chunk that opens the stream does not)."""
    if chunk.usage is not None:
        reply.prompt_tokens = chunk.usage.prompt_tokens
        reply.output_tokens = chunk.usage.completion_tokens
    if not chunk.choices:
        return False
    choice = chunk.choices[0]
    reply.finish_reason = choice.finish_reason or reply.finish_reason
    text = choice.delta.content or ""
    reply.text += text
    content = (choice.logprobs.content if choice.logprobs is not None else None) or []
    if content and reply.first_logprob is None:
        reply.first_logprob = content[0].logprob
        top = [(_token_id(each.token), each.logprob) for each in content[0].top_logprobs or []]
        reply.first_top = {token: logprob for token, logprob in top if token is not None} or None
    named = [token for each in content if (token := _token_id(each.token)) is not None]
    tokens = named or list(getattr(choice, "token_ids", None) or [])
    reply.tokens += tokens
    return bool(text or tokens or content)


def _token_id(text: str) -> int | None:
    """The id that vLLM puts in place of a token's text, or None from a server that does not."""
    return int(text.removeprefix(TOKEN_ID)) if text.startswith(TOKEN_ID) else None
