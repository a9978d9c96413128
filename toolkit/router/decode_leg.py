"""The decode leg of one request: its answer goes to the client, its new handle into the map."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from toolkit.router.call import Call
from toolkit.router.fleet.legs import Leg
from toolkit.router.memory.handle import Handle
from toolkit.router.memory.records import Held
from toolkit.router.outcome import AnsweredBadly, PassOn, status_of
from toolkit.router.paths.choice import Reason
from toolkit.router.relay import StreamRelay
from toolkit.router.request import bodies
from toolkit.router.request.facts import Facts
from toolkit.router.request.kvmember import NotAnObject, cut_member
from toolkit.router.request.refusal import Refusal
from toolkit.router.request.sse import EventTooLarge, response_id
from toolkit.router.state import RouterState
from toolkit.router.wire.client import Answer, EngineFailed, EngineStream, Sink

MAX_ANSWER_BYTES = 256 << 20


class DecodeLeg:
    """Asks decode engines on behalf of one request and relays the answer.

    Attributes:
        holder: the engine that holds the conversation, where only the turn's suffix is left to compute.
    """

    def __init__(self, state: RouterState, facts: Facts, call: Call, headers: bytes, tenant: bytes) -> None:
        self._state = state
        self._facts = facts
        self._call = call
        self._headers = headers
        self._tenant = tenant
        self._leave = call.reply.on_gone
        self._must_arrive = False
        self._pending = 0
        self.holder: Leg | None = None
        call.reply.on_gone = self._client_left

    def _client_left(self) -> None:
        """Ends the request at once, but for one moment: prefill holds blocks for a request that decode has
        not seen yet, and decode's abort is what frees them before their lease ends."""
        if not self._must_arrive and self._leave is not None:
            self._leave()

    def _arrived(self) -> None:
        self._must_arrive = False
        if self._call.reply.gone:
            self._client_left()

    def _begun(self, stream: EngineStream, relay: StreamRelay) -> Sink | None:
        self._arrived()
        return relay.take(stream)

    async def run(self, leg: Leg, params: dict[str, Any] | None, *, local: bool) -> None:
        """The client has its answer, or the beginning and an error event, when this returns.

        Raises:
            EngineFailed: nothing was sent to the client yet. PassOn: the engine refused the request (4xx).
        """
        record = self._call.record
        record.decode = leg.url
        record.attempts += 1
        asked_at = time.monotonic()
        self._pending = self._to_compute(leg) if local else 0
        leg.pending_tokens += self._pending
        try:
            with leg.busy():
                await self._ask(leg, params)
                self._measure(leg, asked_at, local)
        finally:
            self._computed(leg)

    def _computed(self, leg: Leg) -> None:
        """The prompt is no load any more: its first token has come, or will not."""
        leg.pending_tokens -= self._pending
        self._pending = 0

    def _to_compute(self, leg: Leg) -> int:
        """About how many prompt tokens a turn costs an engine that takes it by itself."""
        suffix = self._call.record.suffix_tokens
        if suffix is None or leg is not self.holder:
            return self._state.costs.prompt_tokens(self._facts.history_bytes)
        return suffix

    def _measure(self, leg: Leg, asked_at: float, local: bool) -> None:
        """What the cost model learns of a stream, whose first byte is the first token's."""
        record, costs = self._call.record, self._state.costs
        if record.first_byte_at is None or not self._facts.stream or record.outcome != "ok":
            return
        if not self._facts.transferable:
            # Such a prompt is computed whole.
            return
        took = (record.first_byte_at - asked_at) * 1000
        if not local:
            costs.observe_pull(took, prompt=record.prompt_tokens or 0)
        elif leg is self.holder and record.reason != Reason.PREFILL_AWAY:
            costs.observe_local(took, suffix=record.suffix_tokens or 0)

    async def _open(self, leg: Leg, params: dict[str, Any] | None, relay: StreamRelay) -> EngineStream:
        config, facts = self._state.config, self._facts
        alone = params is None
        retain = self._retains(leg, alone)
        # A request that goes without parameters otherwise is left without.
        release = [] if alone and not retain else self._state.leases.take_in_band(leg)
        self._must_arrive = not alone
        try:
            return await self._state.client.open(
                leg,
                facts.endpoint,
                self._headers,
                bodies.decode_body(facts, params, retain=retain, release=release),
                silence_s=config.stall_timeout_s if facts.stream else config.answer_timeout_s,
                on_sent=self._arrived,
                on_head=lambda stream: self._begun(stream, relay),
                # A second pull of blocks without a lease could find other tokens in them.
                fresh=params is not None and "pd_lease" not in params,
            )
        finally:
            self._must_arrive = False

    def _retains(self, leg: Leg, alone: bool) -> bool:
        """Whether decode shall keep the blocks for the next turn: somebody must be able to come back for
        them, and of a prompt that decode computes alone only our connector gives a handle (a stock engine
        would keep the blocks and tell nobody)."""
        facts = self._facts
        if facts.keys.end is None and facts.keys.explicit is None:
            return False
        return facts.transferable and facts.tells_handle and (leg.offers_leases or not alone)

    async def _ask(self, leg: Leg, params: dict[str, Any] | None) -> None:
        call = self._call
        relay = StreamRelay(leg, call, self._facts, lambda: self._computed(leg))
        try:
            stream = await self._open(leg, params, relay)
            if not relay.taken:
                await self._whole(leg, stream)
                return
            relay.finish()
        except EngineFailed as failure:
            if not call.reply.started:
                raise
            if not relay.done:
                self._break_off(failure)
                return
            # The client has all of the answer: only the engine's connection has no good end.
            self._state.failed(failure, call.record)
        except (NotAnObject, EventTooLarge) as error:
            if not call.reply.started:
                raise _unfit(leg) from error
            self._break_off(_unfit(leg))
            return
        except asyncio.CancelledError:
            if not (call.reply.gone and relay.done):
                raise
            # Some clients hang up as soon as they have read the last event.
        finally:
            self._note_response(leg, relay.response_id)
            if relay.failed:
                self._let_go(leg, relay.captured)
            elif relay.captured is not None or relay.done:
                self._keep(leg, relay.captured)
        self._end(leg, relay)

    def _end(self, leg: Leg, relay: StreamRelay) -> None:
        call = self._call
        if not call.reply.started:
            raise EngineFailed(leg, "ended its stream before the first event")
        if not relay.done and not relay.failed:
            self._break_off(EngineFailed(leg, "ended its stream without its last event"))
            return
        self._state.health.answered(leg)
        if relay.failed:
            call.record.outcome = "engine-error"
        call.reply.end()

    def _break_off(self, failure: EngineFailed) -> None:
        """The client has part of an answer: it is told that no more will come."""
        record = self._call.record
        record.outcome = "decode-broke"
        self._state.failed(failure, record)
        why = f"The decode engine {failure.why} in the middle of its answer."
        self._call.refuse(Refusal(status_of(failure), why))

    async def _whole(self, leg: Leg, stream: EngineStream) -> None:
        answer = Answer(stream.status, stream.headers, await stream.read(MAX_ANSWER_BYTES))
        if stream.status >= 500 or 300 <= stream.status < 400:
            raise AnsweredBadly(leg, answer)
        if stream.status >= 400:
            raise PassOn(leg, answer)
        if not _may_be_object(answer.body):
            raise _unfit(leg)
        try:
            cut = cut_member(answer.body, self._facts.dialect.nests)
        except NotAnObject:
            raise _unfit(leg) from None
        if self._facts.stores:
            self._note_response(leg, response_id(cut.text))
        self._keep(leg, cut.value)
        self._state.health.answered(leg)
        self._call.pass_on(Answer(answer.status, answer.headers, cut.text))

    def _note_response(self, leg: Leg, response_id: str | None) -> None:
        if response_id is not None:
            self._state.stored.note(self._tenant, response_id, leg.url)

    def _let_go(self, leg: Leg, params: object) -> None:
        handle = Handle.pack(params)
        if handle is not None and handle.lease is not None:
            self._state.leases.release(leg, handle.lease)

    def _keep(self, leg: Leg, params: object) -> None:
        """Notes what decode holds now, for the conversation's next turn."""
        facts, record = self._facts, self._call.record
        if not facts.transferable:
            return
        handle = Handle.pack(params)
        now = time.monotonic()
        tokens = record.prompt_tokens or self._state.costs.prompt_tokens(facts.history_bytes)
        if handle is not None:
            self._state.health.saw_engine(leg, handle.engine)
            record.saved = True
            tokens = handle.tokens
        held = Held(leg.url, handle, tokens, facts.history_bytes, now, now, record.prompt_tokens)
        self._state.save(facts.keys, leg, held)


def _may_be_object(body: bytes) -> bool:
    """An engine's answer is a JSON object; whether all of it is one is the client's to read."""
    return body.lstrip()[:1] == b"{" and body.rstrip()[-1:] == b"}"


def _unfit(leg: Leg) -> EngineFailed:
    return EngineFailed(leg, "sent something that cannot be relayed")
