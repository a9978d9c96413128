"""Which leases an engine gives up so that no request waits for blocks that nobody reads.

The scheduler says what a waiting request needs and asks once per step; the blocks are free after that step.
Pure: vLLM's block pool comes in as an object.
"""

from collections.abc import Sequence
from typing import Protocol

from pd_connector.leases import Lease, LeaseBook


class Block(Protocol):
    """One block of the engine's KV cache."""

    ref_cnt: int


class Pool(Protocol):
    """What is used of vLLM's BlockPool."""

    blocks: Sequence[Block]
    num_gpu_blocks: int

    def get_num_free_blocks(self) -> int:
        """Blocks that a request could get now."""


class Pressure:
    """Gives up the oldest leases when blocks run short."""

    def __init__(self, book: LeaseBook, spare: int) -> None:
        self._book = book
        self._spare = spare
        """Blocks kept free for the growth of running requests, which would be preempted otherwise."""
        self._pool: Pool | None = None
        self._short = 0
        self._turned_away: set[str] = set()

    def watch(self, pool: Pool) -> None:
        self._pool = pool
        self._spare = min(self._spare, pool.num_gpu_blocks // 8)

    def demand(self, request: str, blocks: int, at_most: int) -> None:
        """A waiting request needs so many blocks; one that asks again did not get them.

        `at_most` counts those too that it may find in the cache.
        """
        if self._pool is None or not self._book.any_held():
            return
        free = self._pool.get_num_free_blocks()
        short = blocks - free
        if request in self._turned_away and not self._book.leaving():
            # Its need was more than it seemed: cached blocks count, and so do those promised to others.
            short = max(1, at_most - free)
        self._turned_away.add(request)
        self._short = max(self._short, short)

    def admitted(self, request: str) -> None:
        """The request got its blocks, or has ended."""
        self._turned_away.discard(request)

    def spares_running(self) -> bool:
        """A running request found no block: will there be some after this step?"""
        if self._pool is None:
            return False
        if self._book.leaving():
            return True
        self._short = max(self._short, self._spare, 1)
        return self._book.any_to_give_up()

    def relieve(self, computing: bool) -> list[Lease]:
        """End leases as needed; called once per step. Returns what was given up."""
        short, self._short = self._short, 0
        if self._pool is None or not self._book.any_held():
            return []
        if computing:
            short = max(short, self._spare - self._pool.get_num_free_blocks())
        short -= sum(self._gain(lease.blocks) for lease in self._book.leaving())
        return self._book.give_up(short, self._gain)

    def _gain(self, blocks: Sequence[int]) -> int:
        """Blocks that nobody else holds."""
        assert self._pool is not None
        return sum(self._pool.blocks[block].ref_cnt == 1 for block in blocks)
