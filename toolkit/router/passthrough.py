"""Requests that one engine answers by itself."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from toolkit.router.call import Call
from toolkit.router.fleet.legs import Leg, Pool
from toolkit.router.outcome import unanswered
from toolkit.router.request.dialects import DIALECTS, Endpoint
from toolkit.router.request.identity import tenant
from toolkit.router.request.kvmember import NotAnObject, cut_member
from toolkit.router.request.refusal import Refusal
from toolkit.router.request.sse import EventRelay, EventTooLarge, is_event_stream
from toolkit.router.state import RouterState
from toolkit.router.wire.client import Answer, EngineFailed
from toolkit.router.wire.headers import to_engine

# Nothing of another form goes on to an engine: it has URLs that are not for clients.
_STORED = re.compile(r"/v1/responses/(?P<id>[A-Za-z0-9_-]+)(?P<action>/cancel)?")


class Passthrough:
    """Sends a request as it is and the answer back.

    Raises (from each of its works):
        Refusal: no such engine is healthy, or it gave no answer.
    """

    def __init__(self, state: RouterState) -> None:
        self._state = state

    def to(self, pool: Pool) -> Callable[[Call], Awaitable[None]]:
        """The work of any engine of `pool`, where there is none, of any other; if it fails, of a second."""

        async def work(call: Call) -> None:
            leg = self._pick(pool)
            if leg is None:
                raise Refusal(503, "No engine takes requests now. Try again later.", retry_after_s=2)
            try:
                answer = await self._ask(call, leg)
            except EngineFailed as failure:
                other = self._pick(pool, exclude=(leg,))
                if other is None:
                    raise unanswered(failure) from failure
                call.record.retries += 1
                answer = await self._last(call, other)
            call.pass_on(answer)

        return work

    def _pick(self, pool: Pool, exclude: tuple[Leg, ...] = ()) -> Leg | None:
        state = self._state
        pools = (pool, state.decode, state.prefill)
        return next((leg for each in pools if (leg := each.pick(exclude=exclude)) is not None), None)

    async def stored_response(self, call: Call) -> None:
        """GET /v1/responses/ID and POST /v1/responses/ID/cancel: the engine that has it answers.

        Raises, besides: Refusal, 404 or 405, for another URL or method.
        """
        state, request = self._state, call.request
        named = _STORED.fullmatch(request.path)
        if named is None:
            raise Refusal(404, f"This router has no {request.path[:200]}.")
        wanted = "POST" if named["action"] else "GET"
        if request.method != wanted:
            message = f"{request.path[:200]} takes {wanted}, not {request.method}."
            raise Refusal(405, message, allow=wanted)
        leg = state.keeper(tenant(request.headers, state.tenant_secret), named["id"])
        answer = await self._last(call, leg)
        try:
            # An engine keeps the response as it sent it: with the handle, which is nobody's but ours.
            answer.body = _without_metadata(answer)
        except (NotAnObject, EventTooLarge):
            raise Refusal(502, "The decode engine sent something that cannot be relayed.") from None
        call.pass_on(answer)

    async def _last(self, call: Call, leg: Leg) -> Answer:
        """The answer of an engine after which no other is asked."""
        try:
            return await self._ask(call, leg)
        except EngineFailed as failure:
            raise unanswered(failure) from failure

    async def _ask(self, call: Call, leg: Leg) -> Answer:
        state, request, record = self._state, call.request, call.record
        if leg.role == "prefill":
            record.prefill = leg.url
        else:
            record.decode = leg.url
        record.attempts += 1
        headers = to_engine(request.headers, record.request_id, state.engine_authorization)
        path = request.path if not request.query else f"{request.path}?{request.query.decode('latin-1')}"
        try:
            with leg.busy():
                return await state.client.whole(
                    leg, request.method, path, headers, request.body or None, state.config.prefill_timeout_s
                )
        except EngineFailed as failure:
            state.failed(failure, record)
            raise


def _without_metadata(answer: Answer) -> bytes:
    """A stored response in one object, or told again as a stream.

    Raises NotAnObject, EventTooLarge: it cannot be taken out.
    """
    if not is_event_stream(answer.headers):
        return cut_member(answer.body, DIALECTS[Endpoint.RESPONSES].nests).text
    relay = EventRelay(Endpoint.RESPONSES)
    return relay.feed(answer.body) + relay.finish()
