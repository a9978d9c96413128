"""The worker's half of a read: ask the holder first, let vLLM read, and distrust a read that took too long.

`NixlConnector.start_load_kv` passes every step's metadata through `Gate.admit` before vLLM sees it.
"""

import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from pd_connector.asker import Asker
from pd_connector.leases import CLAIM_SECONDS
from pd_connector.peers import Place, forget_older_starts
from pd_connector.sidechannel import Question

PATIENCE_SECONDS = 0.003
"""How long a step waits for answers. Later ones let the read start with a later step."""
_MARGIN_SECONDS = 1.0


class _Asked(NamedTuple):
    meta: Any
    answer: "Future[bool]"
    since: float


class Gate:
    """Holds back the reads of requests until the engine that has the blocks agrees."""

    def __init__(self, worker: Any, asker: Asker, places: Mapping[str, Place]) -> None:
        """`places` are those of the engines to which the worker is connected."""
        self._worker = worker
        self._asker = asker
        self._places = places
        self._asked: dict[str, _Asked] = {}
        self._late_after: dict[str, float] = {}
        self._stock_pop = worker._pop_done_transfers
        worker._pop_done_transfers = self._pop_done_transfers
        self._stock_read = worker._read_blocks_for_req
        worker._read_blocks_for_req = self._read
        self._stock_failed = worker._handle_failed_transfer
        worker._handle_failed_transfer = self._failed

    def admit(self, receive: dict[str, Any], questions: dict[str, Question]) -> None:
        """`receive` is vLLM's reqs_to_recv of this step: what must wait is taken out, what was agreed to is
        put in. A refused read is a failed one, which vLLM's policy then treats."""
        fresh = []
        for request, question in questions.items():
            if request in receive:
                answer = self._asker.ask(question)
                self._asked[request] = _Asked(receive.pop(request), answer, time.monotonic())
                fresh.append(answer)
        if fresh:
            wait(fresh, timeout=PATIENCE_SECONDS)
        for request, asked in list(self._asked.items()):
            if asked.answer.done():
                del self._asked[request]
                self._settle(request, asked, receive)

    def _settle(self, request: str, asked: _Asked, receive: dict[str, Any]) -> None:
        if asked.answer.exception() is None and asked.answer.result():
            if any(asked.meta.local_block_ids):
                self._late_after[request] = asked.since + CLAIM_SECONDS - _MARGIN_SECONDS
            # Its lease is proven alive; what the handle says of its time may be older.
            asked.meta.remote.blocks_expiry_time = None
            receive[request] = asked.meta
            forget_older_starts(self._worker, asked.meta.remote.engine_id)
        else:
            self._refuse(request, asked.meta)

    def _read(self, request: str, meta: Any) -> Any:
        """vLLM reads over the connection that it has for the engine's id. The engine must have been asked at
        that connection's place: at another one whoever sent the handle may have answered."""
        remote = meta.remote
        known = remote.engine_id in self._worker._remote_agents
        if known and self._places.get(remote.engine_id) != (remote.host, remote.port):
            self._late_after.pop(request, None)
            return self._refuse(request, meta)
        answer = self._stock_read(request, meta)
        if known:
            self._forget_release(request)
        return answer

    def _failed(self, request: str, *args: Any, **kwargs: Any) -> Any:
        # vLLM until 0.31 looks for the blocks of such a request, and ends in an IndexError.
        return None if self._forget_release(request) else self._stock_failed(request, *args, **kwargs)

    def _forget_release(self, request: str) -> bool:
        """One that only wanted the holder to let go is done; vLLM until 0.31 would remember it for good."""
        meta = self._worker._recving_metadata.get(request)
        if meta is None or any(meta.local_block_ids):
            return False
        self._worker._recving_metadata.pop(request, None)
        return True

    def _refuse(self, request: str, meta: Any) -> None:
        # Without blocks of its own the request only wanted to have the holder let go; it must not.
        if any(meta.local_block_ids):
            self._worker._recving_metadata[request] = meta
            fail(self._worker, request)
        else:
            self._worker._recving_metadata.pop(request, None)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> Any:
        """What vLLM answers: the requests that are done, from 0.32 on a pair with those that failed."""
        answer = self._stock_pop(transfers)
        for request in answer[0] if isinstance(answer, tuple) else answer:
            late_after = self._late_after.pop(request, None)
            if late_after is not None and time.monotonic() > late_after:
                # Nothing protected the blocks any longer when the last of them were read.
                fail(self._worker, request)
        return answer


def fail(worker: Any, request: str) -> None:
    """The request's read has failed; the worker reports it with its next results."""
    if hasattr(worker, "_recv_failures"):
        worker._failed_recv_reqs.put(request)
    else:
        # Until 0.31 this also says which blocks are worth nothing.
        worker._handle_failed_transfer(request, None)


def set_deadlines(worker: Any, deadlines: dict[str, float], scheduler_clock: float) -> None:
    """Tell the worker until when it keeps which request's blocks; 0 is at once.

    vLLM's worker releases expired blocks from the front and stops at the first that is not, so its list is
    kept in order. The clocks of two machines differ: `scheduler_clock` is the scheduler's now, or 0.
    """
    now = time.perf_counter()
    waiting = worker._reqs_to_send
    for request, deadline in deadlines.items():
        if request in waiting:
            ahead = now - scheduler_clock if scheduler_clock else 0.0
            # A heartbeat may have said later.
            waiting[request] = max(waiting[request], deadline + ahead) if deadline else 0.0
    if len(waiting) > 1:
        worker._reqs_to_send = dict(sorted(waiting.items(), key=lambda entry: entry[1]))
