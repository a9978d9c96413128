"""Forgetting what is wrong about another engine: that it is dead, or what a failed handshake made of it.

NIXL keeps what it knows of a peer, dead or alive, and vLLM until 0.31 for an hour. Pure: no vLLM.
"""

import functools
import inspect
from typing import Any

from pd_connector.engineconfig import without_generation


def forget_older_starts(worker: Any, engine: str) -> list[str]:
    """Drop the worker's state of earlier starts of this engine that no read uses. Returns their ids."""
    name = without_generation(engine)
    older = [one for one in worker._remote_agents if one != engine and without_generation(one) == name]
    if not older:
        return []
    used = {meta.remote.engine_id for meta in worker._recving_metadata.values() if meta.remote is not None}
    dropped = [one for one in older if one not in used]
    # Before 0.24 a worker cannot forget: what it knows of the dead stays, unused.
    cleanup = getattr(worker, "_cleanup_remote_engine", None)
    if cleanup is None:
        return []
    for one in dropped:
        cleanup(one)
    return dropped


def forget_failed_handshakes(worker: Any) -> None:
    """vLLM keeps the layout that a handshake was tried with. Should that have been a client's invention,
    every later handshake with this engine would be measured against it, and fail."""
    stock = worker._nixl_handshake
    signature = inspect.signature(stock)
    if "expected_engine_id" not in signature.parameters:
        return

    @functools.wraps(stock)
    def handshake(*args: Any, **kwargs: Any) -> Any:
        try:
            return stock(*args, **kwargs)
        except BaseException:
            engine = signature.bind(*args, **kwargs).arguments["expected_engine_id"]
            if engine not in worker._remote_agents:
                _forget_layout(worker, engine)
            raise

    worker._nixl_handshake = handshake


def _forget_layout(worker: Any, engine: str) -> None:
    for name in ("tp_mappings", "dst_num_blocks", "kv_caches_base_addr"):
        getattr(worker, name, {}).pop(engine, None)
    unregister = getattr(getattr(worker, "transfer_topo", None), "unregister_remote_engine", None)
    if unregister is not None:
        unregister(engine)
