"""What the plugin changes in an engine's configuration, once, before vLLM's processes get it.

- The engine's id bears a part of its own per start, so that peers that knew it before its restart see a new
  engine and never a dead one's memory.
- `kv_recompute_threshold: auto` becomes a number for vLLM and a note for `threshold`.
"""

import functools
import secrets
from logging import Logger
from typing import Any

THRESHOLD = "kv_recompute_threshold"
AUTO = "auto"
AUTO_NOTE = "pd_auto_threshold"
START_THRESHOLD = 64
"""vLLM's default, until enough has been measured."""
GENERATION_MARK = "+"


def install(arguments: Any, logger: Logger) -> None:
    """Wrap `create_engine_config` of the class EngineArgs. May be called again."""
    stock = arguments.create_engine_config
    if hasattr(stock, "pd_connector_stock"):
        return

    @functools.wraps(stock)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = stock(self, *args, **kwargs)
        transfer = config.kv_transfer_config
        if transfer is not None and _is_ours(transfer):
            several_nodes = getattr(config.parallel_config, "nnodes", 1) > 1
            prepare(transfer, several_nodes, logger)
        return config

    create_engine_config.pd_connector_stock = stock  # type: ignore[attr-defined]
    arguments.create_engine_config = create_engine_config


def prepare(transfer: Any, several_nodes: bool, logger: Logger) -> None:
    """Change a KVTransferConfig as said above."""
    if not several_nodes and GENERATION_MARK not in (transfer.engine_id or ""):
        # Each node of one engine makes its own configuration, and they must agree.
        transfer.engine_id = with_generation(transfer.engine_id)
        logger.info("pd-connector: engine id of this start: %s", transfer.engine_id)
    extra = transfer.kv_connector_extra_config
    if extra.get(THRESHOLD) == AUTO:
        extra[THRESHOLD] = START_THRESHOLD
        extra[AUTO_NOTE] = True


def with_generation(identifier: str | None) -> str:
    """The id with eight random hexadecimal digits behind it."""
    return f"{identifier or 'engine'}{GENERATION_MARK}{secrets.token_hex(4)}"


def without_generation(identifier: str) -> str:
    """What is the same for all starts of one engine."""
    name, mark, rest = identifier.rpartition(GENERATION_MARK)
    # A data-parallel engine's number comes after the generation.
    return name + rest[8:] if mark else identifier


def _is_ours(transfer: Any) -> bool:
    return transfer.kv_connector in ("NixlConnector", "NixlPullConnector")
