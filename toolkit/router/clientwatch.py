"""Notices at once that the client has gone, whatever the router is waiting for meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection."""


class ClientWatch:
    """Listens on ASGI `receive` after the body was read; `async with` it around the exchange."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._abort: Callable[[], object] | None = None
        self._task: asyncio.Task[None] | None = None
        self.gone = False

    async def __aenter__(self) -> ClientWatch:
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._abort is not None:
            self._abort()

    @contextmanager
    def aborting(self, abort: Callable[[], object]) -> Iterator[None]:
        """Within the block a client that goes, or has gone, makes `abort` be called once."""
        self._abort = abort
        try:
            if self.gone:
                abort()
            yield
        finally:
            self._abort = None

    async def run(
        self,
        work: Coroutine[Any, Any, T],
        abort_when: Callable[[Callable[[], object]], object] | None = None,
    ) -> T:
        """Awaits `work` and cancels it when the client goes.

        `abort_when` is given the cancellation and decides when to call it (default: at once).

        Raises:
            ClientGone: `work` was cancelled for that reason.
        """
        task = asyncio.create_task(work)

        def abort() -> None:
            if abort_when is None:
                task.cancel()
            else:
                abort_when(task.cancel)

        with self.aborting(abort):
            try:
                return await task
            except asyncio.CancelledError:
                if self.gone and task.cancelled():
                    raise ClientGone from None
                raise
