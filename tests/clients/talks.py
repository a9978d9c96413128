"""Conversations as programs hold them with the SDKs: each turn sends all that was said before."""

from __future__ import annotations

from typing import Any, Protocol

from anthropic import Anthropic
from openai import OpenAI

from tests.clients.served import Endpoint

ENDPOINTS = ("chat", "completions", "responses", "messages")
SYSTEM = "You answer in one short sentence, whatever is asked."


class Talk(Protocol):
    """One conversation."""

    def say(self, text: str) -> str:
        """The answer to what the user says next."""


class ChatTalk:
    def __init__(self, client: OpenAI, stream: bool, **options: Any) -> None:
        self._client, self._stream, self._options = client, stream, options
        self.messages: list[Any] = [{"role": "system", "content": SYSTEM}]

    def say(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        create = self._client.chat.completions.create
        if self._stream:
            chunks = create(model="tiny", messages=self.messages, stream=True, **self._options)
            answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            whole = create(model="tiny", messages=self.messages, **self._options)
            answer = whole.choices[0].message.content or ""
        self.messages.append({"role": "assistant", "content": answer})
        return answer


class CompletionsTalk:
    def __init__(self, client: OpenAI, stream: bool, **options: Any) -> None:
        self._client, self._stream, self._options = client, stream, options
        self.prompt = SYSTEM

    def say(self, text: str) -> str:
        self.prompt += f"\nUser: {text}\nAssistant:"
        create = self._client.completions.create
        if self._stream:
            chunks = create(model="tiny", prompt=self.prompt, stream=True, **self._options)
            answer = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        else:
            answer = create(model="tiny", prompt=self.prompt, **self._options).choices[0].text
        self.prompt += answer
        return answer


class ResponsesTalk:
    def __init__(self, client: OpenAI, stream: bool, **options: Any) -> None:
        self._client, self._stream, self._options = client, stream, {"store": False, **options}
        self.input: list[Any] = []

    def say(self, text: str) -> str:
        self.input.append({"role": "user", "content": text})
        create = self._client.responses.create
        members = {"model": "tiny", "instructions": SYSTEM, "input": self.input, **self._options}
        if self._stream:
            *events, last = create(stream=True, **members)
            answer = "".join(event.delta for event in events if event.type == "response.output_text.delta")
            response = last.response
            assert response.output_text == answer
        else:
            response = create(**members)
        self.input += response.output
        return str(response.output_text)


class MessagesTalk:
    def __init__(self, client: Anthropic, stream: bool, **options: Any) -> None:
        self._client, self._stream, self._options = client, stream, options
        self.messages: list[Any] = []

    def say(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        members = {"model": "tiny", "system": SYSTEM, "messages": self.messages, **self._options}
        if self._stream:
            with self._client.messages.stream(**members) as stream:
                answer = "".join(stream.text_stream)
                message = stream.get_final_message()
        else:
            message = self._client.messages.create(**members)
            answer = "".join(block.text for block in message.content if block.type == "text")
        self.messages.append({"role": "assistant", "content": message.content})
        return answer


def begin(server: Endpoint, endpoint: str, stream: bool, tokens: int = 16, **options: Any) -> Talk:
    """A conversation at one of ENDPOINTS; `options` are members of each of its requests."""
    if endpoint == "messages":
        return MessagesTalk(server.anthropic(), stream, max_tokens=tokens, **options)
    if endpoint == "responses":
        return ResponsesTalk(server.openai(), stream, max_output_tokens=tokens, **options)
    kind = ChatTalk if endpoint == "chat" else CompletionsTalk
    return kind(server.openai(), stream, max_tokens=tokens, **options)
