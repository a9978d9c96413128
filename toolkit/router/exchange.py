"""One request's way through the engines: find the handle, prefill, decode, with the fallbacks between."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from starlette.datastructures import Headers

from toolkit.router import policy
from toolkit.router.clientwatch import ClientGone, ClientWatch
from toolkit.router.conversations import Handle
from toolkit.router.engines import Leg, Pool
from toolkit.router.facts import RequestFacts
from toolkit.router.headers import RawHeaders, to_client, to_engine
from toolkit.router.kvmember import NotAnObject, cut_member
from toolkit.router.policy import Path
from toolkit.router.record import RequestRecord
from toolkit.router.refusal import Refusal
from toolkit.router.state import RouterState
from toolkit.router.upstream import EngineFailed, SendMark, engine_failures


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An engine's complete answer, fit for the client."""

    status: int
    headers: RawHeaders
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """A decode stream whose first bytes have come; whoever holds it must close `response`."""

    leg: Leg
    response: aiohttp.ClientResponse
    headers: RawHeaders
    first: bytes


class _PassedOn(Exception):
    """Prefill refused the request itself (4xx): its answer is the client's answer."""

    def __init__(self, answer: WholeAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Exchange:
    """Runs one request. Each leg gets at most one second chance, and a handle is sent at most once."""

    def __init__(
        self,
        state: RouterState,
        facts: RequestFacts,
        *,
        url_path: str,
        headers: Headers,
        record: RequestRecord,
        watch: ClientWatch,
    ) -> None:
        self._state = state
        self._facts = facts
        self._url_path = url_path
        self._headers = to_engine(headers, record.request_id)
        self._record = record
        self._watch = watch
        self._unsent: Handle | None = None

    async def answer(self) -> WholeAnswer | StreamAnswer:
        """The engines' answer, its status known and, of a stream, the first bytes in hand.

        Raises:
            Refusal: no engine could answer. ClientGone: nobody waits for the answer any more.
        """
        handle = self._find_handle()
        self._record.path = policy.choose_path(self._facts, handle_found=handle is not None)
        try:
            return await self._over_decode_legs(handle)
        except _PassedOn as passed:
            return passed.answer
        finally:
            if self._unsent is not None and self._facts.key is not None:
                self._state.conversations.give_back(self._facts.key, self._unsent)

    def keep(self, leg: Leg, params: object) -> None:
        """Saves decode's metadata for the conversation's next turn, where it describes one sequence."""
        handle = policy.handle_from(params)
        if handle is None or self._facts.key is None or not self._facts.transferable:
            return
        self._state.conversations.put(self._facts.key, Handle(handle, leg.url, time.monotonic()))
        self._record.saved = True

    def _find_handle(self) -> Handle | None:
        if self._facts.key is None or not self._facts.transferable:
            return None
        handle = self._state.conversations.take(self._facts.key, time.monotonic())
        if handle is None or not self._state.decode.is_healthy(handle.leg):
            # Prefill would wait for an engine that is not there.
            return None
        self._unsent = handle
        return handle

    async def _over_decode_legs(self, handle: Handle | None) -> WholeAnswer | StreamAnswer:
        prefer = None if handle is None else handle.leg
        leg = _pick(self._state.decode, prefer)
        try:
            return await self._once(leg, handle)
        except EngineFailed as failure:
            self._note(failure)
            other = self._state.decode.pick(exclude=(leg,))
            if other is None:
                raise _unanswered(failure) from failure
        # What prefill computed was meant for the first leg: the other one gets a fresh, cold prefill.
        self._second_try_cold()
        try:
            return await self._once(other, None)
        except EngineFailed as failure:
            self._note(failure)
            raise _unanswered(failure) from failure

    async def _once(self, leg: Leg, handle: Handle | None) -> WholeAnswer | StreamAnswer:
        params = None
        if self._record.path != Path.DECODE_LOCAL:
            params = await self._prefill(handle)
        return await self._decode(leg, params)

    async def _prefill(self, handle: Handle | None) -> dict[str, Any] | None:
        """Prefill's transfer parameters, from a second leg or without the handle where needed."""
        leg = _pick(self._state.prefill)
        try:
            return await self._prefill_once(leg, handle)
        except EngineFailed as failure:
            self._note(failure)
            other = self._state.prefill.pick(exclude=(leg,))
            if other is None and handle is not None and failure.sent:
                other = leg
            if other is None:
                raise _unanswered(failure) from failure
            still_good = handle is not None and not failure.sent
        if still_good:
            self._record.retries += 1
        else:
            handle = None
            self._second_try_cold()
        try:
            return await self._prefill_once(other, handle)
        except EngineFailed as failure:
            self._note(failure)
            raise _unanswered(failure) from failure

    async def _prefill_once(self, leg: Leg, handle: Handle | None) -> dict[str, Any] | None:
        self._record.prefill = leg.url
        body = policy.prefill_body(self._facts, None if handle is None else handle.params)
        if handle is not None:
            self._unsent = None
        started = time.monotonic()
        try:
            whole = await self._watch.run(self._ask_prefill(leg, body))
        except EngineFailed as failure:
            if not failure.sent:
                self._unsent = handle
            raise
        if 400 <= whole.status < 500:
            raise _PassedOn(whole)
        if whole.status != 200:
            raise EngineFailed(leg, f"answered {whole.status}", status=whole.status)
        answer = _json_object(whole.body)
        if answer is None:
            raise EngineFailed(leg, "answered something that is not a JSON object")
        self._record.prefill_ms = (time.monotonic() - started) * 1000
        self._record.prompt_tokens = _prompt_tokens(answer)
        params = policy.transfer_params(answer)
        self._record.kv_read_tokens = policy.kv_read_tokens(params)
        return params

    async def _ask_prefill(self, leg: Leg, body: bytes) -> WholeAnswer:
        async with self._state.upstream.whole(leg, "POST", self._url_path, self._headers, body) as response:
            return WholeAnswer(response.status, to_client(response.headers.items()), await response.read())

    async def _decode(self, leg: Leg, params: dict[str, Any] | None) -> WholeAnswer | StreamAnswer:
        """Asks decode even for a client that left meanwhile, and aborts it there: prefill holds blocks
        for decode, and decode's abort is what releases them before their lease ends."""
        self._record.decode = leg.url
        config = self._state.config
        mark = SendMark()
        opening = self._state.upstream.open(
            leg,
            self._url_path,
            self._headers,
            policy.decode_body(self._facts, params),
            mark=mark,
            silence_s=config.stall_timeout_s if self._facts.stream else config.answer_timeout_s,
        )
        response = await self._watch.run(opening, mark.when_sent)
        try:
            with self._watch.aborting(response.close), engine_failures(leg):
                return await self._first_of(leg, response)
        except EngineFailed:
            response.close()
            if self._watch.gone:
                raise ClientGone from None
            raise
        except BaseException:
            response.close()
            raise

    async def _first_of(self, leg: Leg, response: aiohttp.ClientResponse) -> WholeAnswer | StreamAnswer:
        status = response.status
        if status >= 500 or 300 <= status < 400:
            raise EngineFailed(leg, f"answered {status}", status=status)
        headers = to_client(response.headers.items())
        if response.content_type == "text/event-stream":
            first = await response.content.readany()
            if not first:
                raise EngineFailed(leg, "ended its stream before the first byte")
            return StreamAnswer(leg, response, headers, first)
        try:
            cut = cut_member(await response.read())
        except NotAnObject:
            raise EngineFailed(leg, "answered something that is not a JSON object") from None
        self.keep(leg, cut.value)
        return WholeAnswer(status, headers, cut.text)

    def _second_try_cold(self) -> None:
        self._record.retries += 1
        if self._record.path == Path.READBACK:
            self._record.path = Path.PREFILL

    def _note(self, failure: EngineFailed) -> None:
        self._state.metrics.engine_failed(failure.leg)
        self._record.failures.append(str(failure))


def _pick(pool: Pool, prefer: str | None = None) -> Leg:
    leg = pool.pick(prefer=prefer)
    if leg is None:
        raise Refusal(503, f"No {pool.role} engine is healthy. Try again later.")
    return leg


def _unanswered(failure: EngineFailed) -> Refusal:
    """Names the role and the reason; the engine's address is for the log, not for the client."""
    return Refusal(503 if failure.status == 503 else 502, f"The {failure.leg.role} engine {failure.why}.")


def _json_object(raw: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None


def _prompt_tokens(answer: dict[str, Any]) -> int | None:
    usage = answer.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None
