"""NIXL's progress thread, made to sleep on a CPU platform.

NIXL's Python API fixes the thread's poll timeout at 0, so every engine burns a core while idle. The
agent class of the bindings is replaced by one that sets the timeout just before the agent is made.
"""

from logging import Logger
from typing import Any

DELAY_US = 1000
"""Poll timeout in microseconds. The thread still wakes at once for a transfer."""


def let_sleep(logger: Logger) -> None:
    """Every NIXL agent made in this process from now on waits `DELAY_US` per poll. May be called again."""
    from nixl import _bindings

    wrap(_bindings, logger)


def wrap(bindings: Any, logger: Logger) -> None:
    """`bindings` is the module whose `nixlAgent(name, config)` NIXL's Python API calls."""
    stock: Any = bindings.nixlAgent
    if getattr(stock, "pd_connector_delay_us", None) is not None:
        return

    class SleepingAgent(stock):  # type: ignore[misc]
        pd_connector_delay_us = DELAY_US

        def __init__(self, name: str, config: Any) -> None:
            before = config.pthrDelay
            config.pthrDelay = DELAY_US
            super().__init__(name, config)
            logger.info(
                "pd-connector: NIXL progress thread sleeps: pthrDelay=%d us (NIXL had set %d)",
                config.pthrDelay,
                before,
            )

    bindings.nixlAgent = SleepingAgent
