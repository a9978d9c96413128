"""Which URL does what. Answers that no engine gives are errors in the form of the endpoint's API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from toolkit.router.call import Call
from toolkit.router.exchange import Exchange
from toolkit.router.fleet.admission import ClientLeft
from toolkit.router.fleet.legs import Pool
from toolkit.router.observe.snapshot import Snapshots
from toolkit.router.outcome import OF_ENGINES, PassOn
from toolkit.router.pages import OperatorPages
from toolkit.router.passthrough import Passthrough
from toolkit.router.request.dialects import DIALECTS, Endpoint
from toolkit.router.request.facts import read_request
from toolkit.router.request.identity import tenant
from toolkit.router.request.refusal import Dialect, Refusal
from toolkit.router.state import RouterState
from toolkit.router.wire.headers import to_engine
from toolkit.router.wire.server import Reply, Request

_log = logging.getLogger("toolkit.router")

Work = Callable[[Call], Awaitable[None]]


class App:
    """The handler of the HTTP server: one call for each request. Never raises."""

    def __init__(self, state: RouterState, snapshots: Snapshots) -> None:
        self._state = state
        self._pages = OperatorPages(state, snapshots)
        self._passthrough = Passthrough(state)
        self._works: dict[str, dict[str, Work]] = {
            endpoint.value: {"POST": self._generate} for endpoint in Endpoint
        }
        alone: tuple[tuple[str, str, Pool], ...] = (
            ("/v1/models", "GET", state.decode),
            ("/version", "GET", state.decode),
            ("/tokenize", "POST", state.prefill),
            ("/detokenize", "POST", state.prefill),
            ("/v1/messages/count_tokens", "POST", state.prefill),
        )
        for path, method, pool in alone:
            self._works[path] = {method: self._passthrough.to(pool)}

    async def __call__(self, request: Request, reply: Reply) -> None:
        if self._pages.answer(request, reply):
            return
        call = Call(request, reply, _ERRORS.get(request.path, "openai"))
        record = call.record
        record.route = self._route(request.path)
        try:
            await self._admitted(call)
        except Refusal as refusal:
            record.outcome = "engine-error" if refusal.status in OF_ENGINES else "refused"
            call.refuse(refusal)
        except PassOn as passed:
            if passed.answer.status >= 500:
                record.outcome = "engine-error"
            call.pass_on(passed.answer)
        except (asyncio.CancelledError, ClientLeft):
            if reply.gone:
                record.outcome = "client-gone"
            else:
                # Only the end of the drain cancels the request of a client that is still there.
                record.outcome = "shutdown"
                call.refuse(Refusal(503, "The router is shutting down. Try again.", retry_after_s=1))
        except Exception:
            _log.exception("request %s failed inside the router", record.request_id)
            record.outcome = "internal-error"
            call.refuse(Refusal(500, "The router failed on this request; its log says why."))
        finally:
            # These lead back to the request: without them it dies here, and not when cycles are looked for.
            reply.on_gone = reply.on_pause = reply.on_resume = None
            self._state.ledger.ended(record)

    async def _admitted(self, call: Call) -> None:
        state = self._state
        work = self._work(call.request)
        if state.api_keys is not None:
            call.record.key_name = state.api_keys.check(call.request.headers)
            if call.record.key_name is None:
                raise Refusal(401, "This router needs an API key: Authorization: Bearer KEY.")
        call.reply.on_gone = call.reply.cancel
        async with state.admission.place(call.reply):
            call.record.queue_ms = (time.monotonic() - call.record.started) * 1000
            await work(call)

    def _route(self, path: str) -> str:
        if path in self._works:
            return path
        return "/v1/responses/ID" if path.startswith("/v1/responses/") else "other"

    def _work(self, request: Request) -> Work:
        methods = self._works.get(request.path)
        if methods is None and request.path.startswith("/v1/responses/"):
            return self._passthrough.stored_response
        if methods is None:
            raise Refusal(404, f"This router has no {request.path[:200]}.")
        work = methods.get(request.method)
        if work is None:
            allow = ", ".join(methods)
            raise Refusal(405, f"{request.path} takes {allow}, not {request.method}.", allow=allow)
        return work

    def _generate(self, call: Call) -> Awaitable[None]:
        state, request, record = self._state, call.request, call.record
        credential = tenant(request.headers, state.tenant_secret)
        facts = read_request(_ENDPOINTS[request.path], request.body, request.headers, credential)
        record.stream = facts.stream
        if facts.keys.explicit is not None and facts.conversation is not None:
            record.conversation, record.identity = facts.keys.explicit, "explicit"
        elif facts.keys.chain:
            record.conversation, record.identity = facts.keys.chain[0], "automatic"
        headers = to_engine(request.headers, record.request_id, state.engine_authorization)
        return Exchange(state, facts, call, headers, credential).run()


_ENDPOINTS = {endpoint.value: endpoint for endpoint in Endpoint}
_ERRORS: dict[str, Dialect] = {
    **{endpoint.value: DIALECTS[endpoint].errors for endpoint in Endpoint},
    "/v1/messages/count_tokens": DIALECTS[Endpoint.MESSAGES].errors,
}
