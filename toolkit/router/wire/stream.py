"""One exchange with an engine: its answer as it comes, and every way it can fail told as one exception."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkit.router.wire.headers import RawHeaders

if TYPE_CHECKING:
    from toolkit.router.wire.engine_connection import EngineConnection

Sink = Callable[[bytes], None]
OnHead = Callable[["EngineStream"], Sink | None]

# What may come before anybody reads it; then the engine has to wait.
_UNREAD_BYTES = 262_144


class EngineFailed(Exception):
    """An engine gave no usable answer.

    Attributes:
        leg: which one; has `role` and `url`.
        why: a few words, without body or credential.
        sent: whether the engine may have seen the request.
        status: the HTTP status that it answered, if it did.
        timed_out: it was given up for taking too long.
    """

    def __init__(
        self, leg: Any, why: str, *, sent: bool = True, status: int | None = None, timed_out: bool = False
    ) -> None:
        super().__init__(f"{leg.role} {leg.url} {why}")
        self.leg = leg
        self.why = why
        self.sent = sent
        self.status = status
        self.timed_out = timed_out


class EngineLeft(EngineFailed):
    """`abort` was called: the router left the engine, which did nothing wrong."""


class EngineStream:
    """An answer whose head has come.

    Attributes:
        leg: who answers.
        status, headers: of the answer (0 and empty before it).
        complete: everything has come; when `sink` sees this, its piece is the last.
        paused: `pause` was called, and `resume` not since.
        held: the engine is not read for now, for that reason or because nobody takes what comes.
    """

    __slots__ = (
        "_connection",
        "_failure",
        "_limit",
        "_on_head",
        "_over",
        "_parts",
        "_size",
        "_too_much_unread",
        "_waiter",
        "awaits_head",
        "bodiless",
        "complete",
        "headers",
        "held",
        "leg",
        "paused",
        "silence_s",
        "sink",
        "stale",
        "status",
        "until",
    )

    def __init__(
        self,
        leg: Any,
        connection: EngineConnection,
        *,
        silence_s: float = 0.0,
        until: float = math.inf,
        limit: int | None = None,
        bodiless: bool = False,
        on_head: OnHead | None = None,
    ) -> None:
        """silence_s, until: how long the engine may be silent, when it must have ended (time.monotonic).

        limit: bytes of a body that is kept whole; None for one that is read as it comes.
        on_head: called when the head has come; it may name what takes the body from its first byte on.
        """
        self.leg = leg
        self.status = 0
        self.complete = False
        self.headers: RawHeaders = []
        self.paused = self.held = False
        self.silence_s = silence_s
        self.until = until
        self.bodiless = bodiless
        self.stale = False
        self.awaits_head = limit is None
        self.sink: Sink | None = None
        self._on_head = on_head
        self._limit = limit
        self._connection = connection
        self._parts: list[bytes] = []
        self._size = 0
        self._too_much_unread = False
        self._failure: Exception | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    async def read(self, limit: int) -> bytes:
        """The whole rest of the body.

        Raises:
            EngineFailed: it broke, was silent for too long, or is longer than `limit` bytes.
        """
        parts: list[bytes] = []
        left = limit

        def take(piece: bytes) -> None:
            nonlocal left
            left -= len(piece)
            if left < 0:
                raise EngineFailed(self.leg, f"answered more than {limit} bytes", status=self.status)
            parts.append(piece)

        await self.relay(take)
        return b"".join(parts)

    async def relay(self, sink: Sink) -> None:
        """Hands every piece of the body to `sink` as it comes; returns at its regular end.

        Raises:
            EngineFailed: it broke or was silent for too long; EngineLeft after `abort`.
            whatever `sink` raises; the connection is closed then.
        """
        if self._parts:
            unread, self._parts = self._parts, []
            try:
                sink(b"".join(unread))
            except Exception:
                self.abort()
                raise
        self.sink = sink
        if self._too_much_unread:
            self._too_much_unread = False
            if not self.paused:
                self._read_on()
        try:
            await self.wait()
        finally:
            # It leads back here: the exchange would die by the search for cycles only.
            self.sink = None

    def pause(self) -> None:
        """Stops reading: the engine has to wait as soon as the buffers between are full."""
        self.paused = True
        self._hold()

    def resume(self) -> None:
        """Reads on."""
        self.paused = False
        if not self._too_much_unread:
            self._read_on()

    def abort(self) -> None:
        """Closes the connection: the engine sees its client leave. Nothing comes any more."""
        if self._is_open():
            self._connection.drop()
            self.failed(EngineLeft(self.leg, "was left"))

    def _hold(self) -> None:
        self.held = True
        if self._is_open():
            self._connection.deadline = self.until
            self._connection.transport.pause_reading()

    def _read_on(self) -> None:
        self.held = False
        if self._is_open():
            self._connection.transport.resume_reading()
            if self.silence_s:
                self._connection.deadline = monotonic() + self.silence_s

    def _is_open(self) -> bool:
        return not self.complete and not self._over

    # What the client and the connection call.

    async def wait(self) -> None:
        """Until the head has come, if the answer is read as it comes and nobody takes its body by then, or
        its end.

        Raises:
            EngineFailed: it never will. When cancelled, the connection is closed.
        """
        if self._is_open():
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.abort()
                raise
        if self._over:
            failure, self._failure = self._failure, None
            try:
                raise failure or EngineFailed(self.leg, "was given up before")
            finally:
                # Its traceback holds this frame: for the search for cycles again.
                del failure

    def body(self) -> bytes:
        """What was kept."""
        parts = self._parts
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def keep(self, piece: bytes) -> None:
        """A piece that nobody takes yet."""
        self._parts.append(piece)
        self._size += len(piece)
        if self._limit is None:
            if self._size > _UNREAD_BYTES:
                self._too_much_unread = True
                self._hold()
        elif self._size > self._limit:
            self._connection.drop()
            self.failed(EngineFailed(self.leg, f"answered more than {self._limit} bytes", status=self.status))

    def begun(self) -> None:
        """The head has come: whoever waits goes on, unless the body has a taker from here on."""
        self.awaits_head = False
        on_head, self._on_head = self._on_head, None
        if on_head is not None:
            self.sink = on_head(self)
        if self.sink is None:
            self._wake()

    def ended(self) -> None:
        self.sink = None
        self._wake()

    def failed(self, failure: Exception) -> None:
        self._failure = failure
        self._over = True
        self.sink = None
        self._parts = []
        self._wake()

    def late(self) -> str:
        """Why the deadline has passed, for an error."""
        if self._limit is None and not self.awaits_head:
            return f"was silent for {self.silence_s:g} s"
        return "did not answer in time"

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
