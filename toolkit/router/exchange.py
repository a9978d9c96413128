"""One request's way through the engines: what decode holds of it, the path, the legs, the fallbacks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from toolkit.router.call import Call
from toolkit.router.decode_leg import DecodeLeg
from toolkit.router.fleet.legs import Leg, Pool
from toolkit.router.memory.conversation import Found
from toolkit.router.memory.handle import Handle
from toolkit.router.outcome import PassOn, unanswered
from toolkit.router.paths.choice import LEAST_READ_TOKENS, Choice, Path, Reason, Turn, choose
from toolkit.router.prefill_leg import prefill
from toolkit.router.request.facts import Facts
from toolkit.router.request.refusal import Refusal
from toolkit.router.state import RouterState
from toolkit.router.wire.client import EngineFailed


class Exchange:
    """Runs one request. Each leg gets at most one second chance, and a handle is sent at most once."""

    def __init__(self, state: RouterState, facts: Facts, call: Call, headers: bytes, tenant: bytes) -> None:
        self._state = state
        self._facts = facts
        self._call = call
        self._headers = headers
        self._tenant = tenant
        self._decode = DecodeLeg(state, facts, call, headers, tenant)
        self._found: Found | None = None
        self._handle: Handle | None = None

    async def run(self) -> None:
        """Answers the client.

        Raises:
            Refusal: no engine could answer. CancelledError: the client left, or the router ends.
            PassOn: an engine refused the request; its answer is the client's.
        """
        self._decode.holder = holder = self._holder()
        path = self._choose(holder)
        try:
            await self._over_decode_legs(holder, path)
        finally:
            if self._handle is not None and self._found is not None:
                self._give_back(self._found, self._handle)

    def _give_back(self, found: Found, handle: Handle) -> None:
        """No engine was sent it."""
        state = self._state
        released = state.conversations.give_back(found, handle)
        state.release(released)
        leg = state.decode.by_url(found.held.leg)
        if not released and leg is not None and handle.lease is not None:
            state.leases.keep(leg, handle.lease, age_s=time.monotonic() - found.held.saved_at)

    def _holder(self) -> Leg | None:
        """The healthy decode leg that holds this conversation, if one does."""
        facts, state = self._facts, self._state
        if facts.previous_response is not None:
            return state.keeper(self._tenant, facts.previous_response, "previous_response_id")
        self._found = state.conversations.find(facts.keys)
        if self._found is None:
            return None
        leg = state.decode.by_url(self._found.held.leg)
        # Without it prefill would wait for an engine that is not there.
        return leg if leg is not None and leg.healthy and not leg.leaving else None

    def _choose(self, holder: Leg | None) -> Path:
        state, record = self._state, self._call.record
        if self._facts.previous_response is not None:
            choice = Choice(Path.DECODE_LOCAL, Reason.STORED_RESPONSE)
        else:
            choice = choose(self._turn(holder), state.costs, state.limits)
        if choice.path is Path.READBACK and self._found is not None:
            self._handle = state.conversations.take(self._found)
            if self._handle is None:
                choice = Choice(Path.PREFILL, Reason.NO_HANDLE)
        record.path, record.reason = str(choice.path), str(choice.reason)
        return choice.path

    def _turn(self, holder: Leg | None) -> Turn:
        facts, costs, found = self._facts, self._state.costs, self._found
        if found is None:
            return Turn(facts.transferable, facts.forced)
        held, handle = found.held, found.held.handle
        common, suffix = costs.held_and_new(
            history_bytes=facts.history_bytes,
            held_bytes=held.history_bytes,
            held_tokens=held.tokens,
            held_prompt=held.prompt_tokens,
            new_bytes=found.new_bytes,
        )
        record, prompt = self._call.record, common + suffix
        record.held_tokens, record.suffix_tokens = common, suffix
        # Under a name the last common turn is the least that is common: an edit may come well behind it. Of a
        # branch it is nearly all, and the handle is another branch's.
        named, branch = found.conversation.named, found.new_bytes is not None
        return Turn(
            facts.transferable,
            facts.forced,
            found=True,
            decode_here=holder is not None,
            handle=handle is not None and (named or not branch or common >= LEAST_READ_TOKENS),
            proven=handle is not None and handle.proven,
            prompt_tokens=prompt,
            held_tokens=min(held.tokens, prompt) if named and branch else common,
            suffix_tokens=suffix,
            pending_tokens=0 if holder is None else holder.pending_tokens,
        )

    async def _over_decode_legs(self, holder: Leg | None, path: Path) -> None:
        leg = _pick(self._state.decode, holder)
        try:
            return await self._attempt(leg, path)
        except EngineFailed as failure:
            self._state.failed(failure, self._call.record)
            if self._call.reply.gone:
                raise asyncio.CancelledError from failure
            other = None if self._facts.previous_response else self._state.decode.pick(exclude=(leg,))
            if other is None or self._call.reply.started:
                raise unanswered(failure) from failure
        # What prefill computed was meant for the first leg: the other one gets a fresh, cold prefill.
        try:
            return await self._attempt(other, self._second_try(path))
        except EngineFailed as failure:
            self._state.failed(failure, self._call.record)
            raise unanswered(failure) from failure

    async def _attempt(self, leg: Leg, path: Path) -> None:
        if path is Path.DECODE_LOCAL:
            return await self._decode.run(leg, None, local=True)
        try:
            params = await self._over_prefill_legs(leg)
        except _PrefillAway as away:
            if not self._state.config.decode_alone:
                raise away.refusal from away
            self._call.record.path, self._call.record.reason = (
                Path.DECODE_LOCAL.value,
                Reason.PREFILL_AWAY.value,
            )
            return await self._decode.run(leg, None, local=True)
        return await self._decode.run(leg, params, local=False)

    async def _over_prefill_legs(self, decode: Leg) -> dict[str, Any] | None:
        """Prefill's transfer parameters, from a second leg or without the handle where needed.

        Raises _PrefillAway where no prefill engine has seen the request.
        """
        leg = self._state.prefill.pick()
        if leg is None:
            raise _PrefillAway(_none_healthy(self._state.prefill))
        handle = self._handle if self._call.record.path == Path.READBACK else None
        try:
            return await self._prefill(leg, decode, handle)
        except PassOn:
            if handle is None:
                raise
            # Maybe it is the handle that the engine does not take.
            other = leg
        except EngineFailed as failure:
            self._state.failed(failure, self._call.record)
            other = self._other_prefill(leg, failure)
            if not failure.sent and handle is not None:
                self._call.record.retries += 1
                return await self._last_prefill(other, decode, handle)
        self._second_try(Path.PREFILL)
        return await self._last_prefill(other, decode, None)

    def _other_prefill(self, leg: Leg, failure: EngineFailed) -> Leg:
        """Who is asked after `leg` failed: another, or itself without the handle that it was sent."""
        other = self._state.prefill.pick(exclude=(leg,))
        if other is None and failure.sent and self._call.record.offered:
            return leg
        if other is None:
            raise _ending(failure)
        return other

    async def _last_prefill(self, leg: Leg, decode: Leg, handle: Handle | None) -> dict[str, Any] | None:
        try:
            return await self._prefill(leg, decode, handle)
        except EngineFailed as failure:
            self._state.failed(failure, self._call.record)
            raise _ending(failure) from failure

    async def _prefill(self, leg: Leg, decode: Leg, handle: Handle | None) -> dict[str, Any] | None:
        if handle is None:
            return await prefill(self._state, self._facts, self._call, self._headers, leg, None)
        self._handle, self._call.record.offered = None, True
        leases = self._state.leases
        if handle.lease is not None:
            leases.claim(decode, handle.lease)
        try:
            params = await prefill(self._state, self._facts, self._call, self._headers, leg, handle)
        except BaseException as error:
            if isinstance(error, EngineFailed) and not error.sent:
                self._handle, self._call.record.offered = handle, False
            elif handle.lease is not None:
                # It may be half read: nobody else may have it, and nobody comes back for it.
                leases.release(decode, handle.lease)
            raise
        if handle.lease is not None and not self._call.record.kv_read_tokens:
            leases.release(decode, handle.lease)
        return params

    def _second_try(self, path: Path) -> Path:
        """What is tried after a failure: never a handle again."""
        record = self._call.record
        record.retries += 1
        if self._facts.transferable and self._facts.forced is not Path.DECODE_LOCAL:
            path = Path.PREFILL
        if record.path != path:
            record.path, record.reason = str(path), str(Reason.RETRY)
        record.kv_read_tokens, record.offered = None, False
        return path


class _PrefillAway(Exception):
    """No prefill engine has seen the request: decode can still compute it alone."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def _ending(failure: EngineFailed) -> Exception:
    """What prefill's last failure leads to. Made here: an exception that a frame of its own traceback holds
    would die by the search for cycles only."""
    ending = unanswered(failure)
    return ending if failure.sent or isinstance(ending, PassOn) else _PrefillAway(ending)


def _pick(pool: Pool, holder: Leg | None) -> Leg:
    leg = pool.pick(prefer=None if holder is None else holder.url, by_pending=True)
    if leg is None:
        raise _none_healthy(pool)
    return leg


def _none_healthy(pool: Pool) -> Refusal:
    return Refusal(503, f"No {pool.role} engine takes requests now. Try again later.", retry_after_s=2)
