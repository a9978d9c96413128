"""A router of our own on a real socket: tokenizes, streams chat chunks as vLLM does, fails on demand."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from toolkit.plan.sweep import Conversation, Point, Schedule
from toolkit.testing.serving import serve_app


def count(messages: list[dict[str, str]]) -> int:
    """Words of more than five letters are two tokens; four more a message, three for the reply's start."""
    words = [word for message in messages for word in message["content"].split()]
    return sum(2 if len(word) > 5 else 1 for word in words) + 4 * len(messages) + 3


@dataclass
class FakeRouter:
    """`fail`: (part of a conversation id, turn) -> how: "503", "error event" or "cut"."""

    readback: bool = True
    token_ids: str = "logprobs"
    fail: dict[tuple[str, int], str] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    authorization: set[str] = field(default_factory=set)
    paths_asked_for: set[str | None] = field(default_factory=set)
    running: int = 0
    most_running: int = 0
    tokenized_while_running: int = 0
    url: str = ""

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        assert body["add_generation_prompt"] is True
        self.tokenized_while_running += self.running > 0
        return JSONResponse({"count": count(body["messages"]), "tokens": []})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.authorization.add(request.headers["authorization"])
        self.paths_asked_for.add(request.headers.get("x-kv-path"))
        seen = {each["conversation_id"] for each in self.requests}
        self.requests.append(body)
        turn = (len(body["messages"]) + 1) // 2
        how = next(
            (how for (part, at), how in self.fail.items() if part in body["conversation_id"] and at == turn),
            "",
        )
        if how == "503":
            return JSONResponse({"error": {"message": "no decode engine " + "x" * 400, "type": "x"}}, 503)
        hit = self.readback and body["conversation_id"] in seen
        headers = {"X-KV-Path": "readback" if hit else "prefill", "X-Prefill-Ms": "12.5" if hit else "80.25"}
        headers["X-KV-Read-Tokens"] = "96" if hit else "0"
        return StreamingResponse(self.stream(body, how), headers=headers, media_type="text/event-stream")

    async def stream(self, body: dict[str, Any], how: str) -> AsyncIterator[str]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            seed = hashlib.sha256(json.dumps(body["messages"]).encode()).digest()
            yield event({"delta": {"role": "assistant", "content": ""}, "logprobs": None})
            await asyncio.sleep(0.02)
            total = body["max_tokens"]
            for i in range(total):
                if how and i == 2:
                    if how == "error event":
                        yield f"data: {json.dumps({'error': {'message': 'engine died', 'code': 500}})}\n\n"
                    return
                yield event(self.choice(seed[i % 32], "length" if i + 1 == total else None))
                await asyncio.sleep(0)
            usage = {
                "prompt_tokens": count(body["messages"]),
                "completion_tokens": total,
                "total_tokens": count(body["messages"]) + total,
            }
            yield event(None, usage)
            yield "data: [DONE]\n\n"
        finally:
            self.running -= 1

    def choice(self, token: int, finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"delta": {"content": f"t{token} "}, "finish_reason": finish}
        spelled = f"token_id:{token}" if self.token_ids == "logprobs" else f"t{token}"
        choice["logprobs"] = {
            "content": [
                {"token": spelled, "logprob": -token / 100, "bytes": None}
                | {"top_logprobs": [{"token": spelled, "logprob": -token / 100, "bytes": None}]}
            ]
        }
        if self.token_ids == "field":
            choice["token_ids"] = [token]
        return choice


def event(choice: dict[str, Any] | None, usage: dict[str, int] | None = None) -> str:
    chunk: dict[str, Any] = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    chunk["choices"] = [{"index": 0, "finish_reason": None, **choice}] if choice else []
    if usage:
        chunk["usage"] = usage
    return f"data: {json.dumps(chunk)}\n\n"


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    fake = FakeRouter()
    app = Starlette(
        routes=[
            Route("/tokenize", fake.tokenize, methods=["POST"]),
            Route("/v1/chat/completions", fake.chat, methods=["POST"]),
        ]
    )
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    with serve_app(config) as fake.url:
        yield fake


@pytest.fixture
def schedule() -> Schedule:
    """Two lengths, two conversations each, three turns of six tokens; no rest between points."""
    points = tuple(
        Point(length, tuple(Conversation(f"{length}-{i}", length, length * 10 + i) for i in range(2)))
        for length in (400, 900)
    )
    return Schedule("on", "tiny", 3, 6, 20, 1, 0.0, points)
