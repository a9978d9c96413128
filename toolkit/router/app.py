"""The HTTP app: which URL does what. Answers that no engine gives are errors in the OpenAI form."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from toolkit.router.clientwatch import ClientGone, ClientWatch
from toolkit.router.config import RouterConfig
from toolkit.router.engines import Pool
from toolkit.router.exchange import Exchange, StreamAnswer, WholeAnswer
from toolkit.router.facts import Endpoint, read_request
from toolkit.router.headers import request_id, to_client, to_engine
from toolkit.router.record import RequestRecord
from toolkit.router.refusal import Refusal, error_body
from toolkit.router.relay import relay_stream
from toolkit.router.reply import Reply, read_body
from toolkit.router.state import RouterState
from toolkit.router.upstream import EngineFailed

_LAST_WORDS_S = 5.0
_log = logging.getLogger("toolkit.router")


def create_app(config: RouterConfig) -> Starlette:
    """The router as an ASGI app; its lifespan opens the engine session and the health watch.

    Raises:
        SettingsError: the access log cannot be written.
    """
    state = RouterState.build(config)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watch = state.health_watch()
        async with state.upstream:
            await watch.start()
            try:
                yield
            finally:
                await watch.stop()
                # Requests that the drain cut off still tell their clients and write their log line.
                if not await state.in_flight.idle(_LAST_WORDS_S):
                    _log.warning("%d requests did not end with the router", state.in_flight.count)
                state.access_log.close()

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", _Generate(state, "chat"), methods=["POST"]),
            Route("/v1/completions", _Generate(state, "completions"), methods=["POST"]),
            Route("/v1/models", _Passthrough(state, state.decode), methods=["GET"]),
            Route("/tokenize", _Passthrough(state, state.prefill), methods=["POST"]),
            Route("/detokenize", _Passthrough(state, state.prefill), methods=["POST"]),
            Route("/health", _Health(state), methods=["GET"]),
            Route("/metrics", _MetricsPage(state), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        lifespan=lifespan,
    )
    # A redirect would be one more answer that is neither an engine's nor an OpenAI error.
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True)
class Call:
    """A request whose body has come, and the way back to its client."""

    method: str
    path: str
    headers: Headers
    body: bytes
    record: RequestRecord
    reply: Reply
    watch: ClientWatch


class _Exchanged(ABC):
    """What every request to an engine has in common: body, record, refusals, the end."""

    def __init__(self, state: RouterState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        record = RequestRecord(request_id(headers), time.monotonic())
        reply = Reply(send, record, self._state.config.stall_timeout_s)
        with self._state.in_flight.one():
            try:
                await self._guarded(scope, receive, headers, record, reply)
            except ClientGone:
                # It left while it was being told of an error.
                record.outcome = "client-gone"
            finally:
                self._state.ended(record)

    async def _guarded(
        self, scope: Scope, receive: Receive, headers: Headers, record: RequestRecord, reply: Reply
    ) -> None:
        """Runs the exchange; whatever ends it early becomes an answer, and an outcome of the record."""
        config = self._state.config
        try:
            raw = await read_body(
                receive, headers, limit=config.max_body_bytes, stall_timeout_s=config.stall_timeout_s
            )
            async with ClientWatch(receive) as watch:
                await self._exchange(Call(scope["method"], scope["path"], headers, raw, record, reply, watch))
        except Refusal as refusal:
            record.outcome = "refused"
            await reply.refuse(refusal)
        except ClientGone:
            record.outcome = "client-gone"
        except asyncio.CancelledError:
            # Only the end of the drain cancels a request.
            record.outcome = "shutdown"
            await reply.break_off(Refusal(503, "The router is shutting down. Try again."))
        except Exception:
            _log.exception("request %s failed inside the router", record.request_id)
            record.outcome = "internal-error"
            await reply.break_off(Refusal(500, "The router failed on this request; its log says why."))

    @abstractmethod
    async def _exchange(self, call: Call) -> None:
        """Asks the engines and answers the client."""


class _Generate(_Exchanged):
    """POST /v1/chat/completions and /v1/completions."""

    def __init__(self, state: RouterState, endpoint: Endpoint) -> None:
        super().__init__(state)
        self._endpoint: Endpoint = endpoint

    async def _exchange(self, call: Call) -> None:
        facts = read_request(self._endpoint, call.body, call.headers)
        call.record.stream = facts.stream
        call.record.conversation = facts.conversation
        exchange = Exchange(
            self._state,
            facts,
            url_path=call.path,
            headers=call.headers,
            record=call.record,
            watch=call.watch,
        )
        answer = await exchange.answer()
        if isinstance(answer, StreamAnswer):
            if not await relay_stream(answer, exchange, call.reply, call.watch):
                call.record.outcome = "decode-broke"
            return
        await call.reply.whole(answer.status, answer.headers, answer.body)


class _Passthrough(_Exchanged):
    """A request that one engine answers by itself."""

    def __init__(self, state: RouterState, pool: Pool) -> None:
        super().__init__(state)
        self._pool = pool

    async def _exchange(self, call: Call) -> None:
        leg = self._pool.pick()
        if leg is None:
            raise Refusal(503, f"No {self._pool.role} engine is healthy. Try again later.")
        if leg.role == "prefill":
            call.record.prefill = leg.url
        else:
            call.record.decode = leg.url

        async def ask() -> WholeAnswer:
            sent = to_engine(call.headers, call.record.request_id)
            upstream = self._state.upstream
            async with upstream.whole(leg, call.method, call.path, sent, call.body or None) as response:
                return WholeAnswer(
                    response.status, to_client(response.headers.items()), await response.read()
                )

        try:
            answer = await call.watch.run(ask())
        except EngineFailed as failure:
            self._state.metrics.engine_failed(leg)
            call.record.failures.append(str(failure))
            raise Refusal(502, f"The {leg.role} engine {failure.why}.") from failure
        await call.reply.whole(answer.status, answer.headers, answer.body)


class _Health:
    """200 once a prefill and a decode engine are healthy, else 503; always with every leg named."""

    def __init__(self, state: RouterState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pools = (self._state.prefill, self._state.decode)
        ready = all(pool.ready for pool in pools)
        body: dict[str, object] = {"status": "ok" if ready else "unavailable"}
        for pool in pools:
            body[pool.role] = [{"url": leg.url, "healthy": leg.healthy} for leg in pool.legs]
        response = Response(orjson.dumps(body), 200 if ready else 503, media_type="application/json")
        await response(scope, receive, send)


class _MetricsPage:
    def __init__(self, state: RouterState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = Response(self._state.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})
        await response(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        message = f"This router has no {request.url.path}."
    elif status == 405:
        message = f"{request.url.path} does not take {request.method}."
    else:
        message = "The request cannot be answered."
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return _error(status, message, headers)


async def _internal_error(_: Request, __: Exception) -> Response:
    return _error(500, "The router failed on this request; its log says why.", {})


def _error(status: int, message: str, headers: dict[str, str]) -> Response:
    return Response(error_body(status, message), status, media_type="application/json", headers=headers)
