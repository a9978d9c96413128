"""The three loads, each made new for every measurement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.router.bodies import conversations
from bench.router.client import ChunkConnection, Connection, DirectClient, Door, RouterClient, Tally, Turns
from bench.router.stub import Pair
from bench.router.targets import Router
from bench.router.window import Cores, Window, observe

EXTRA_EVENTS = 3
"""Of a chat's stream beside one for each token: role, usage, [DONE]."""
SATURATION_CLIENTS = 32
SATURATION_CHUNKS = 16
CHUNK_STREAMS = 64
CHUNK_GAP_S = 0.02
TTFT_CHUNKS = 16
TTFT_GAP_S = 0.01
TTFT_JITTER = 0.2


@dataclass
class Bench:
    """What all measurements share; `warm_s` and `window_s` are those of the saturation, others scale them."""

    pair: Pair
    engines: tuple[Door, Door]
    cores: Cores
    warm_s: float
    window_s: float

    def _answer(self, chunks: int, gap_s: float, jitter: float = 0.0) -> None:
        """How the stub engines answer from now on."""
        self.pair.chunks, self.pair.gap_s, self.pair.jitter = chunks, gap_s, jitter

    async def saturate(self, router: Router, size: int, new: tuple[int, ...]) -> Window:
        """32 clients ask as fast as they are answered; a stream's events are sent at once."""
        self._answer(SATURATION_CHUNKS, 0.0)
        tally = Tally(SATURATION_CHUNKS + EXTRA_EVENTS)
        source = conversations(size, new, SATURATION_CHUNKS)
        clients = [
            RouterClient(router.door, await router.door.connect(), source, tally)
            for _ in range(SATURATION_CLIENTS)
        ]
        return await observe(
            clients, tally, router.pid, self.cores, warm_s=self.warm_s, window_s=self.window_s, lag_s=0.0
        )

    async def first_tokens(self, router: Router | None, size: int, clients: int) -> Window:
        """First turns, so that there are always two legs; without a router the clients ask the engines."""
        self._answer(TTFT_CHUNKS, TTFT_GAP_S, TTFT_JITTER)
        tally = Tally(TTFT_CHUNKS + EXTRA_EVENTS)
        source = conversations(size, (), TTFT_CHUNKS)
        made = [await self._client(router, source, tally) for _ in range(clients)]
        # Evenly over one answer's time, or all would ask at the same moment for ever.
        lag = TTFT_CHUNKS * TTFT_GAP_S / clients
        pid = router.pid if router else None
        return await observe(
            made, tally, pid, self.cores, warm_s=self.warm_s, window_s=self.window_s / 2, lag_s=lag
        )

    async def _client(self, router: Router | None, source: Iterator[Turns], tally: Tally) -> RouterClient:
        if router is not None:
            return RouterClient(router.door, await router.door.connect(), source, tally)
        prefill, decode = self.engines
        return DirectClient(self.engines, (await prefill.connect(), await decode.connect()), source, tally)

    async def chunks(self, router: Router) -> Window:
        """64 streams, each with an event every 20 ms, none at the same moment; no request begins or ends."""
        seconds = self.warm_s + 2 * self.window_s
        self._answer(round((seconds + 0.5) / CHUNK_GAP_S), CHUNK_GAP_S)
        tally = Tally(self.pair.chunks + EXTRA_EVENTS)
        source = conversations(4096, (), SATURATION_CHUNKS)

        def connection() -> Connection:
            return ChunkConnection(tally)

        clients = [
            RouterClient(router.door, await router.door.connect(connection), source, tally)
            for _ in range(CHUNK_STREAMS)
        ]
        lag = CHUNK_GAP_S / CHUNK_STREAMS
        return await observe(
            clients, tally, router.pid, self.cores, warm_s=self.warm_s, window_s=2 * self.window_s, lag_s=lag
        )
