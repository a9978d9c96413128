"""When Python looks for cycles of garbage: beside the requests, not in the middle of one.

Almost everything here dies by its reference count. What does not (a traceback that holds its frame) is young,
and a look at what was made within the last second finds it; the whole memory, which may hold very many
conversations, is looked through rarely.
"""

from __future__ import annotations

import gc

WHOLE_EVERY = 600


class GarbageCollector:
    """To be polled each second, between `start` and `stop`."""

    def __init__(self) -> None:
        self._polls = 0

    def start(self) -> None:
        """What is there by now lives as long as the process, and is left out of every look."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def poll(self) -> None:
        """Looks through what is young; every ten minutes through everything."""
        self._polls += 1
        gc.collect(2 if self._polls % WHOLE_EVERY == 0 else 0)

    def stop(self) -> None:
        """Back to Python's own way."""
        gc.unfreeze()
        gc.enable()
