"""A fake vLLM prefill or decode engine over real HTTP: right answers in vLLM's form, and faults on demand.

engine = FakeEngine("decode")
with serve_engine(engine) as url:
    engine.fault = Fault(status=503)
    ...
    assert engine.seen[0].body["stream"] is True

It behaves as vLLM with our connector does, or as one without (`stock`). Prefill reads of a decode engine in
the same process what a handle proves, if its lease is still held.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toolkit.testing import fake_answers as answers
from toolkit.testing.fake_answers import GENERATE
from toolkit.testing.fake_handles import BYTES_PER_TOKEN, Blocks, token_count
from toolkit.testing.fake_leases import OPERATIONS, FakeLeases
from toolkit.testing.serving import serve_app

Role = Literal["prefill", "decode"]
_TRANSPORT = "fake_engine.transport"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with a generate request. Unset members mean: nothing.

    Attributes:
        status, body, headers: answered instead of a generation.
        delay_s: waited before anything else.
        hang: "answer" sends nothing at all, "stream" stops after `after_events` events, "end" sends all
            events but does not end the stream.
        reset: the connection is cut, before the answer, after its head or in the middle of the stream.
        ends: the stream ends in good order after `after_events` events and these bytes.
        after_events: how many events of a stream still arrive.
        only: how many requests it hits (None: all).
        without_params: prefill keeps nothing for decode.
    """

    status: int | None = None
    body: bytes = b'{"error":{"message":"injected","type":"InternalServerError","param":null,"code":500}}'
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)
    delay_s: float = 0.0
    hang: Literal["answer", "stream", "end"] | None = None
    reset: Literal["answer", "head", "stream"] | None = None
    ends: bytes | None = None
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
    """The ASGI app.

    Attributes:
        tokens: the pieces of every generated text; they end in the middle of a block.
        native: a null kv_transfer_params in every other chunk, as vLLM 0.33 writes it.
        stock: vLLM without our connector: handles without proof or lease, and no lease routes.
        generation: part of the engine's id; our connector draws another one at each start.
        leases: those that decode grants, and the routes that were asked.
        stranded: answers whose blocks a stock engine keeps for good, since it was given parameters that
            neither prefill nor decode sends.
        responses: stored answers of /v1/responses by id, as the engine sends them.
        spell: the pieces of a generated text, where they depend on the request and its rendered prompt.
    """

    role: Role
    name: str = "engine"
    tokens: Sequence[str] = ("Once", " upon", " a", " time")
    native: bool = False
    token_s: float = 0.0
    fault: Fault = field(default_factory=Fault)
    healthy: bool = True
    stock: bool = False
    generation: str = ""
    leases: FakeLeases = field(default_factory=FakeLeases)
    stranded: int = 0
    responses: dict[str, bytes] = field(default_factory=dict)
    spell: Callable[[Seen, bytes], Sequence[str]] | None = None
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
        self.stock = False
        self.generation = ""
        self.leases.reset()
        self.stranded = 0
        self.responses.clear()

    def restart(self, generation: str) -> None:
        """A new life: another engine id, and no block, lease or response of the earlier one."""
        self.generation = generation
        self.leases.forget()
        self.responses.clear()

    @property
    def engine_id(self) -> str:
        """What the engine's handles call it."""
        return f"{self.name}+{self.generation}" if self.generation else f"{self.name}-id"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        raw = await _read(receive)
        path, method = scope["path"], scope["method"]
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        if path in GENERATE and method == "POST":
            seen = Seen(path, headers, json.loads(raw))
            self.seen.append(seen)
            await self._generate(seen, scope, receive, send)
        elif path.startswith("/pd/leases"):
            await self._lease_route(method, path, raw, headers, send)
        else:
            status, body = self._other(path, raw)
            await _answer(send, status, body)

    def _other(self, path: str, raw: bytes) -> tuple[int, bytes]:
        if path == "/health":
            return (200 if self.healthy else 503), b""
        if path == "/version":
            return 200, b'{"version":"0.29.0"}'
        if path == "/v1/models":
            listed = {"object": "list", "data": [{"id": self.name, "object": "model"}]}
            return 200, answers.to_json(listed)
        if path in ("/tokenize", "/detokenize", answers.MESSAGES + "/count_tokens"):
            body = _object(raw)
            if body is None:
                return 400, _error(400, "The body is no JSON object.")
            if path.startswith("/v1"):
                count = token_count(answers.render(answers.MESSAGES, body))
                return 200, answers.to_json({"input_tokens": count})
            return 200, answers.to_json({"engine": self.name, "path": path, "echo": body})
        if path.startswith(answers.RESPONSES + "/"):
            return self._stored(path.removeprefix(answers.RESPONSES + "/"))
        return 404, b'{"error":{"message":"Not Found","code":404}}'

    def _stored(self, rest: str) -> tuple[int, bytes]:
        """GET of a stored response, whole as vLLM gives it: with its KV metadata. Or POST .../cancel."""
        named, _, action = rest.partition("/")
        found = self.responses.get(named)
        if found is None:
            return 404, _error(404, f"Response with id '{named}' not found.")
        return (400, _error(400, "Cannot cancel a synchronous response.")) if action else (200, found)

    async def _lease_route(
        self, method: str, path: str, raw: bytes, headers: Mapping[str, str], send: Send
    ) -> None:
        operation = path.removeprefix("/pd/leases").strip("/") or "counts"
        known = method == "GET" if operation == "counts" else operation in OPERATIONS and method == "POST"
        if self.stock or not known:
            await _answer(send, 404, b'{"detail":"Not Found"}')
            return
        status, body = self.leases.answer(operation, raw, headers.get("authorization"))
        await _answer(send, status, answers.to_json(body))

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
        previous = seen.body.get("previous_response_id")
        if fault.hang == "answer":
            await asyncio.Event().wait()
        if fault.reset in ("answer", "head"):
            seen.ended = "failed"
            if fault.reset == "head":
                length = [(b"content-length", b"100")]
                await send({"type": "http.response.start", "status": 200, "headers": length})
            scope[_TRANSPORT].abort()
        elif fault.status is not None:
            seen.ended = "failed"
            await _answer(send, fault.status, fault.body, fault.headers)
        elif previous is not None and previous not in self.responses:
            await _answer(send, 404, _error(404, f"Response with id '{previous}' not found."))
        elif seen.body.get("stream"):
            await self._stream(seen, fault, scope, send)
        else:
            reply = self._reply(seen, fault)
            for _ in reply.tokens if self.role == "decode" else ():
                await asyncio.sleep(self.token_s)
            whole, clean = reply.whole()
            seen.sent.append(clean)
            await _answer(send, 200, whole)

    async def _stream(self, seen: Seen, fault: Fault, scope: Scope, send: Send) -> None:
        reply = self._reply(seen, fault)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-engine", self.name.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        events = list(reply.events())
        for number, (event, clean) in enumerate(events):
            if number == fault.after_events and fault.reset == "stream":
                seen.ended = "failed"
                scope[_TRANSPORT].abort()
                return
            if number == fault.after_events and fault.hang == "stream":
                await asyncio.Event().wait()
            if number == fault.after_events and fault.ends is not None:
                seen.ended = "failed"
                await send(_body(fault.ends, more=False))
                return
            more = number < len(events) - 1
            # Noted first: whoever has read a piece finds it here.
            seen.sent.append(clean)
            await send(_body(event, more=more or fault.hang == "end"))
            if more:
                await asyncio.sleep(self.token_s)
        if fault.hang == "end":
            await asyncio.Event().wait()

    def _reply(self, seen: Seen, fault: Fault) -> answers.Reply:
        prompt = answers.render(seen.path, seen.body)
        seen.params = None if fault.without_params else self._params_for(seen, prompt)
        reply = answers.Reply(
            seen.path,
            f"resp_{self.name}_{next(self._serial)}" if seen.path == answers.RESPONSES else "gen-1",
            self.name,
            tuple(self._said(seen, prompt)),
            token_count(prompt),
            seen.body.get("n") or 1,
            seen.params,
            self.native,
            bool((seen.body.get("stream_options") or {}).get("include_usage")),
        )
        if seen.path == answers.RESPONSES and seen.body.get("store", True):
            self.responses[reply.id] = reply.whole()[0]
        return reply

    def _said(self, seen: Seen, prompt: bytes) -> Sequence[str]:
        return self.tokens if self.spell is None else self.spell(seen, prompt)

    def _params_for(self, seen: Seen, prompt: bytes) -> dict[str, Any] | None:
        """What the other side may read from here, as `request_finished` of the connector answers."""
        asked = seen.body.get("kv_transfer_params")
        if not asked:
            return None
        # The last token has no KV yet.
        history = (prompt + "".join(self._said(seen, prompt)).encode())[:-BYTES_PER_TOKEN]
        request = f"{self.name}-{next(self._serial)}"
        if asked.get("do_remote_decode"):
            return Blocks(prompt, self.engine_id, request, self.stock).for_decode(asked)
        pulls = bool(asked.get("do_remote_prefill"))
        if self.stock:
            self.stranded += not pulls
        else:
            for name in asked.get("pd_release", ()):
                self.leases.release(name)
            if not asked.get("pd_retain", pulls):
                return None
        return Blocks(history, self.engine_id, request, self.stock).for_prefill(self.leases)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _error(status: int, message: str) -> bytes:
    return answers.to_json({"error": {"message": message, "type": "invalid_request_error", "code": status}})


class _Protocol(HttpToolsProtocol):
    """Gives the app its transport, so that a fault can cut the connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[_TRANSPORT] = self.transport  # type: ignore[literal-required]


@contextmanager
def serve_engine(engine: FakeEngine, port: int = 0) -> Iterator[str]:
    """Serves an engine on a loopback port, 0: a free one; gives its URL."""
    config = uvicorn.Config(engine, http=_Protocol, ws="none", lifespan="off", log_level="critical")
    with serve_app(config, port) as url:
        yield url


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
