"""What a fake engine writes: prompts as a template would render them, and answers in the forms of vLLM 0.29.

Every answer comes twice: as the engine sends it, and without KV metadata, as a client must get it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
GENERATE = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

# Begins every prompt, as a model's own system text does.
_PREAMBLE = b"You are a fake engine.".ljust(128, b".")
MEMBER = "kv_transfer_params"
# Real clients look at it before they look at anything else.
_OBJECTS = {
    (CHAT, "whole"): "chat.completion",
    (CHAT, "chunk"): "chat.completion.chunk",
    (COMPLETIONS, "whole"): "text_completion",
    (COMPLETIONS, "chunk"): "text_completion",
}

Pair = tuple[bytes, bytes]
"""As the engine sends it, and as a client must get it."""


def render(path: str, body: Mapping[str, Any]) -> bytes:
    """The prompt: a longer conversation begins with the bytes of the shorter one and its answer."""
    if path == COMPLETIONS:
        return _PREAMBLE + _text(body.get("prompt")).encode()
    parts = [body["tools"]] if body.get("tools") else []
    parts += [body[name] for name in ("system", "instructions") if body.get(name)]
    lines = [json.dumps(part, sort_keys=True) for part in parts]
    items = body.get("input" if path == RESPONSES else "messages")
    for item in items if isinstance(items, list) else [{"role": "user", "content": items}]:
        role, content = (item.get("role"), item.get("content")) if isinstance(item, dict) else (None, item)
        lines.append(f"{role}: {_text(item if content is None else content)}")
    return _PREAMBLE + "\n".join([*lines, "assistant: "]).encode()


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(str(part.get("text", json.dumps(part))) for part in content)
    return json.dumps(content)


@dataclass(frozen=True, slots=True)
class Reply:
    """All that an answer is made of.

    Attributes:
        model: the engine's name.
        prompt: number of tokens.
        choices: more than one only where the request asks for it.
        params: the KV metadata of the answer, if any.
        native: a null kv_transfer_params in chat and completions, as vLLM 0.33 writes it.
        usage: the stream ends with a chunk of usage.
    """

    path: str
    id: str
    model: str
    tokens: Sequence[str]
    prompt: int
    choices: int = 1
    params: Mapping[str, Any] | None = None
    native: bool = False
    usage: bool = False

    def whole(self) -> Pair:
        """The answer in one JSON object."""
        if self.path == RESPONSES:
            return self._nested(self._response("completed", self.tokens), self.params)
        if self.path == MESSAGES:
            answer = self._message() | {
                "content": [{"type": "text", "text": "".join(self.tokens)}],
                "stop_reason": "end_turn",
            }
            return _pair(answer, self.params, always=False)
        return _pair(self._completion(), self.params, always=self.native)

    def events(self) -> Iterator[Pair]:
        """The answer as server-sent events."""
        if self.path == RESPONSES:
            yield from self._response_events()
        elif self.path == MESSAGES:
            # vLLM makes these of a chat stream, whose KV metadata gets lost on the way.
            for name, data in self._message_events():
                event = _event(name, to_json({"type": name, **data}))
                yield event, event
        else:
            *chunks, last = self._chunks()
            pairs = [_pair(chunk, None, always=self.native) for chunk in chunks]
            for sent, clean in [*pairs, _pair(last, self.params, always=self.native)]:
                yield b"data: " + sent + b"\n\n", b"data: " + clean + b"\n\n"
            yield b"data: [DONE]\n\n", b"data: [DONE]\n\n"

    def _openai_usage(self) -> dict[str, Any]:
        count = len(self.tokens)
        total = self.prompt + count
        return {"prompt_tokens": self.prompt, "total_tokens": total, "completion_tokens": count}

    def _completion(self) -> dict[str, Any]:
        text = "".join(self.tokens)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "stop_reason": None, "logprobs": None}
        if self.path == CHAT:
            call = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            message = {"role": "assistant", "content": text, "reasoning": None, "tool_calls": [call]}
            choice |= {"message": message}
        else:
            choice |= {"text": text}
        choices = [choice | {"index": number} for number in range(self.choices)]
        return {**self._head("whole"), "choices": choices, "usage": self._openai_usage()}

    def _head(self, kind: Literal["whole", "chunk"]) -> dict[str, Any]:
        kind_of_object = _OBJECTS[self.path, kind]
        return {"id": self.id, "object": kind_of_object, "created": 1796004748, "model": self.model}

    def _chunks(self) -> list[dict[str, Any]]:
        last = len(self.tokens) - 1
        chunks: list[dict[str, Any]] = []
        for number, token in enumerate(self.tokens):
            piece = {"delta": {"content": token}} if self.path == CHAT else {"text": token}
            choice: dict[str, Any] = {"index": 0, **piece}
            choice |= {"logprobs": None, "finish_reason": "length" if number == last else None}
            chunks.append({**self._head("chunk"), "choices": [choice]})
        if self.usage:
            chunks.append({**self._head("chunk"), "choices": [], "usage": self._openai_usage()})
        return chunks

    def _message(self) -> dict[str, Any]:
        usage = {"input_tokens": self.prompt, "output_tokens": len(self.tokens)}
        head = {"id": self.id, "type": "message", "role": "assistant", "content": [], "model": self.model}
        return {**head, "stop_reason": None, "stop_sequence": None, "usage": usage}

    def _message_events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "message_start", {"message": self._message()}
        yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
        for token in self.tokens:
            yield "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": token}}
        yield "content_block_stop", {"index": 0}
        ended = {"delta": {"stop_reason": "max_tokens"}, "usage": self._message()["usage"]}
        yield "message_delta", ended
        yield "message_stop", {}

    def _response(self, status: str, tokens: Sequence[str]) -> dict[str, Any]:
        part: dict[str, Any] = {"type": "output_text", "text": "".join(tokens), "annotations": []}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": [part]}
        counted = {"input_tokens": self.prompt, "output_tokens": len(tokens)}
        usage = {**counted, "total_tokens": self.prompt + len(tokens)}
        return {
            "id": self.id,
            "object": "response",
            "model": self.model,
            "output": [item] if tokens else [],
            "status": status,
            "usage": usage if tokens else None,
        }

    def _nested(self, response: dict[str, Any], params: Mapping[str, Any] | None) -> Pair:
        """vLLM writes the member, null or not, into every response and event that carries one."""
        rest = {"input_messages": None, "output_messages": None}
        return to_json({**response, MEMBER: params, **rest}), to_json({**response, **rest})

    def _response_events(self) -> Iterator[Pair]:
        text = "".join(self.tokens)
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        started = self._nested(self._response("in_progress", ()), None)
        ended = self._nested(self._response("completed", self.tokens), self.params)
        middle: list[tuple[str, dict[str, Any]]] = [
            ("response.output_item.added", {"output_index": 0, "item": item}),
            ("response.content_part.added", {**place, "part": {"type": "output_text", "text": ""}}),
            *(("response.output_text.delta", {**place, "delta": token}) for token in self.tokens),
            ("response.output_text.done", {**place, "text": text}),
            ("response.content_part.done", {**place, "part": {"type": "output_text", "text": text}}),
            ("response.output_item.done", {"output_index": 0, "item": {**item, "status": "completed"}}),
        ]
        yield _carrying("response.created", started, 0)
        yield _carrying("response.in_progress", started, 1)
        for number, (name, data) in enumerate(middle, start=2):
            event = _event(name, to_json({**data, "sequence_number": number, "type": name}))
            yield event, event
        yield _carrying("response.completed", ended, len(middle) + 2)


def to_json(value: object) -> bytes:
    """As vLLM's models write it."""
    return json.dumps(value, separators=(",", ":")).encode()


def _pair(answer: dict[str, Any], params: Mapping[str, Any] | None, *, always: bool) -> Pair:
    """As the plugin splices it: a last member of the object."""
    clean = to_json(answer)
    return (to_json({**answer, MEMBER: params}) if always or params is not None else clean), clean


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _carrying(name: str, response: Pair, number: int) -> Pair:
    head, tail = b'{"response":', f',"sequence_number":{number},"type":"{name}"}}'.encode()
    return _event(name, head + response[0] + tail), _event(name, head + response[1] + tail)
