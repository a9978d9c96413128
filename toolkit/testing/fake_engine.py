"""A fake vLLM prefill or decode engine over real HTTP: right answers in vLLM's form, and faults on demand.

engine = FakeEngine("decode")
with serve_engine(engine) as url:
    engine.fault = Fault(status=503)
    ...
    assert engine.seen[0].body["stream"] is True
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

Role = Literal["prefill", "decode"]
GENERATE = ("/v1/chat/completions", "/v1/completions")
_TRANSPORT = "fake_engine.transport"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with a generate request. Unset members mean: nothing.

    Attributes:
        status, body, headers: answered instead of a generation.
        delay_s: waited before anything else.
        hang: "answer" sends nothing at all, "stream" stops after `after_events` events, "end" sends all
            events but does not end the stream.
        reset: the connection is cut, before the answer or in the middle of the stream.
        after_events: how many events of a stream still arrive.
        only: how many requests it hits (None: all).
        without_params: prefill keeps nothing for decode.
    """

    status: int | None = None
    body: bytes = b'{"error":{"message":"injected","type":"InternalServerError","param":null,"code":500}}'
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)
    delay_s: float = 0.0
    hang: Literal["answer", "stream", "end"] | None = None
    reset: Literal["answer", "stream"] | None = None
    after_events: int = 2
    only: int | None = None
    without_params: bool = False


@dataclass(slots=True)
class Seen:
    """One generate request as the engine saw it, and how it ended.

    Attributes:
        sent: the answer's pieces without KV metadata; `clean` is what a client must receive.
        params: the KV metadata of the answer.
        ended: running, done, failed (a fault) or aborted (the other side left).
    """

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    sent: list[bytes] = field(default_factory=list)
    params: dict[str, Any] | None = None
    ended: str = "running"

    @property
    def clean(self) -> bytes:
        return b"".join(self.sent)


class _Gone(Exception):
    """The other side closed its connection."""


@dataclass(eq=False)
class FakeEngine:
    """The ASGI app. `tokens` are the pieces of every generated text; `native` writes a null
    kv_transfer_params into every other chunk, as vLLM 0.33 does."""

    role: Role
    name: str = "engine"
    tokens: Sequence[str] = ("Once", " upon", " a", " time")
    native: bool = False
    token_s: float = 0.0
    fault: Fault = field(default_factory=Fault)
    healthy: bool = True
    seen: list[Seen] = field(default_factory=list)
    _serial: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def reset(self) -> None:
        """Forgets requests, faults and whatever tests change."""
        self.fault = Fault()
        self.healthy = True
        self.native = False
        self.token_s = 0.0
        self.tokens = ("Once", " upon", " a", " time")
        self.seen.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        raw = await _read(receive)
        path = scope["path"]
        if path in GENERATE:
            headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
            seen = Seen(path, headers, json.loads(raw))
            self.seen.append(seen)
            await self._generate(seen, scope, receive, send)
        elif path == "/health":
            await _answer(send, 200 if self.healthy else 503, b"")
        elif path == "/v1/models":
            listed = {"object": "list", "data": [{"id": self.name, "object": "model"}]}
            await _answer(send, 200, _json(listed))
        elif path in ("/tokenize", "/detokenize"):
            await _answer(send, 200, _json({"engine": self.name, "path": path, "echo": json.loads(raw)}))
        else:
            await _answer(send, 404, b'{"error":{"message":"Not Found","code":404}}')

    async def _generate(self, seen: Seen, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self._fault_of_this_request()
        left = asyncio.create_task(_until_left(receive))
        try:
            await _unless(left, self._run(seen, fault, scope, send))
            if seen.ended == "running":
                seen.ended = "done"
        except _Gone:
            seen.ended = "aborted"
        finally:
            left.cancel()
            with suppress(asyncio.CancelledError):
                await left

    def _fault_of_this_request(self) -> Fault:
        fault = self.fault
        if fault.only is not None:
            left = fault.only - 1
            self.fault = Fault() if left <= 0 else replace(fault, only=left)
        return fault

    async def _run(self, seen: Seen, fault: Fault, scope: Scope, send: Send) -> None:
        await asyncio.sleep(fault.delay_s)
        if fault.hang == "answer":
            await asyncio.Event().wait()
        if fault.reset == "answer":
            seen.ended = "failed"
            scope[_TRANSPORT].abort()
        elif fault.status is not None:
            seen.ended = "failed"
            await _answer(send, fault.status, fault.body, fault.headers)
        elif seen.body.get("stream"):
            await self._stream(seen, fault, scope, send)
        else:
            seen.params = self._params_for(seen, fault)
            for _ in self.tokens if self.role == "decode" else ():
                await asyncio.sleep(self.token_s)
            whole = _json(self._whole(seen))
            seen.sent.append(whole)
            await _answer(send, 200, _with_member(whole, seen.params, self.native))

    async def _stream(self, seen: Seen, fault: Fault, scope: Scope, send: Send) -> None:
        seen.params = self._params_for(seen, fault)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-engine", self.name.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        chunks = self._chunks(seen)
        for number, chunk in enumerate(chunks):
            if number == fault.after_events and fault.reset == "stream":
                seen.ended = "failed"
                scope[_TRANSPORT].abort()
                return
            if number == fault.after_events and fault.hang == "stream":
                await asyncio.Event().wait()
            params = seen.params if number == len(chunks) - 1 else None
            event = _with_member(chunk, params, self.native)
            await send(_body(b"data: " + event + b"\n\n", more=True))
            seen.sent.append(b"data: " + chunk + b"\n\n")
            await asyncio.sleep(self.token_s)
        seen.sent.append(b"data: [DONE]\n\n")
        await send(_body(b"data: [DONE]\n\n", more=fault.hang == "end"))
        if fault.hang == "end":
            await asyncio.Event().wait()

    def _chunks(self, seen: Seen) -> list[bytes]:
        chat = seen.path == "/v1/chat/completions"
        last = len(self.tokens) - 1
        chunks = []
        for number, token in enumerate(self.tokens):
            piece = {"delta": {"content": token}} if chat else {"text": token}
            choice: dict[str, Any] = {"index": 0, **piece}
            choice |= {"logprobs": None, "finish_reason": "length" if number == last else None}
            chunks.append(_json({"id": "gen-1", "model": self.name, "choices": [choice]}))
        if (seen.body.get("stream_options") or {}).get("include_usage"):
            chunks.append(_json({"id": "gen-1", "choices": [], "usage": _USAGE}))
        return chunks

    def _whole(self, seen: Seen) -> dict[str, Any]:
        text = "".join(self.tokens)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "stop_reason": None, "logprobs": None}
        if seen.path == "/v1/chat/completions":
            call = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            message = {"role": "assistant", "content": text, "reasoning": None, "tool_calls": [call]}
            choice |= {"message": message}
        else:
            choice |= {"text": text}
        choices = [choice | {"index": number} for number in range(seen.body.get("n") or 1)]
        return {"id": "gen-1", "model": self.name, "choices": choices, "usage": _USAGE}

    def _params_for(self, seen: Seen, fault: Fault) -> dict[str, Any] | None:
        """As our connector's request_finished answers: what the other side may read from here."""
        asked = seen.body.get("kv_transfer_params")
        if not asked or fault.without_params:
            return None
        is_prefill = bool(asked.get("do_remote_decode"))
        read = {"pd_read": 32 if asked.get("remote_block_ids") else 0} if is_prefill else {}
        return {
            **read,
            "do_remote_prefill": is_prefill,
            "do_remote_decode": not is_prefill,
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": f"{self.name}-id",
            "remote_request_id": f"{self.name}-{next(self._serial)}",
            "remote_host": "10.1.2.3",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": 40,
        }


_USAGE = {"prompt_tokens": 37, "total_tokens": 41, "completion_tokens": 4}


class _Protocol(HttpToolsProtocol):
    """Gives the app its transport, so that a fault can cut the connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[_TRANSPORT] = self.transport  # type: ignore[literal-required]


@contextmanager
def serve_engine(engine: FakeEngine) -> Iterator[str]:
    """Serves an engine on a free loopback port; gives its URL."""
    config = uvicorn.Config(engine, http=_Protocol, ws="none", lifespan="off", log_level="critical")
    with serve_in_thread(uvicorn.Server(config)) as url:
        yield url


@contextmanager
def serve_in_thread(server: uvicorn.Server, host: str = "127.0.0.1") -> Iterator[str]:
    """Runs a uvicorn server in a thread on a free port; gives its URL and stops it afterwards."""
    with socket.create_server((host, 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise RuntimeError("the server ended before it listened")
                thread.join(0.005)
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def free_port(host: str = "127.0.0.1") -> int:
    """A port where nobody listens just now."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


async def _unless(left: asyncio.Task[None], work: Any) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        raise _Gone
    await task


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),),
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send(_body(body, more=False))


def _body(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _with_member(chunk: bytes, params: dict[str, Any] | None, native: bool) -> bytes:
    """As the plugin splices it: a last member of the chunk's object."""
    if params is None and not native:
        return chunk
    return chunk[:-1] + b',"kv_transfer_params":' + _json(params) + b"}"


def wait_until(true: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Polls until `true()` holds.

    Raises:
        TimeoutError: it did not within `timeout_s`.
    """
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if true():
            return
        pause.wait(0.01)
    raise TimeoutError("what was waited for did not happen")
