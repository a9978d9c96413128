"""What the worker knows of other engines: where they are, and forgetting what is wrong about them.

NIXL keeps what it knows of a peer, dead or alive, and vLLM until 0.31 for an hour. Pure: no vLLM.
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from pd_connector.engineconfig import without_generation
from pd_connector.versions import RefusedError

Place = tuple[str, int]
"""Host and port of an engine's handshake."""


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


def watch_handshakes(worker: Any) -> Mapping[str, Place]:
    """Where the worker has found each engine to which it is connected; kept up to date.

    vLLM keeps the layout that a handshake was tried with. Should that have been a client's invention, every
    later handshake with this engine would be measured against it, and fail: so a failed one is forgotten.
    Raises RefusedError where vLLM's handshake is not what this knows.
    """
    stock = worker._nixl_handshake
    signature = inspect.signature(stock)
    if missing := {"host", "port", "expected_engine_id"} - signature.parameters.keys():
        raise RefusedError(
            f"pd-connector: vLLM's NIXL handshake has no parameter {', '.join(sorted(missing))}"
        )
    places: dict[str, Place] = {}

    @functools.wraps(stock)
    def handshake(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        engine = given["expected_engine_id"]
        try:
            answer = stock(*args, **kwargs)
        except BaseException:
            if engine not in worker._remote_agents:
                _forget_layout(worker, engine)
            raise
        # Before vLLM takes the connection for this engine's.
        places[engine] = given["host"], given["port"]
        return answer

    worker._nixl_handshake = handshake
    return places


def _forget_layout(worker: Any, engine: str) -> None:
    for name in ("tp_mappings", "dst_num_blocks", "kv_caches_base_addr"):
        getattr(worker, name, {}).pop(engine, None)
    unregister = getattr(getattr(worker, "transfer_topo", None), "unregister_remote_engine", None)
    if unregister is not None:
        unregister(engine)
