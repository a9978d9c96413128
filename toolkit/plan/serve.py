"""The command line and environment of one engine: `vllm serve` as the published system expands it. Pure."""

from __future__ import annotations

import json
from typing import Literal

from toolkit.settings.deployment import Deployment, Leg
from toolkit.settings.target import ParallelClusterTarget

Role = Literal["prefill", "decode"]

KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}
# Our connector answers to the published name; without the plugin the engine refuses to start.
CONNECTOR_MODULE = "pd_connector.connector"


def vllm_arguments(settings: Deployment, role: Role, index: int, model: str) -> tuple[str, ...]:
    """`vllm serve ...` of server `index` (from 1) of a leg; `model`: hub id or folder."""
    leg = leg_of(settings, role)
    caching = "--enable-prefix-caching" if leg.prefix_caching else "--no-enable-prefix-caching"
    return (
        *("vllm", "serve", model),
        *("--served-model-name", settings.model.served_name),
        *("--dtype", settings.model.dtype),
        *("--tensor-parallel-size", str(leg.tensor_parallel)),
        *("--max-model-len", str(settings.model.max_model_len)),
        *("--max-num-seqs", str(leg.max_num_seqs)),
        caching,
        *("--port", str(leg.port)),
        *("--kv-transfer-config", kv_transfer_config(settings, role, index)),
        *leg.extra_args,
    )


def kv_transfer_config(settings: Deployment, role: Role, index: int) -> str:
    """The JSON of `--kv-transfer-config`; kv_rank and kv_parallel_size as published for one pair."""
    return json.dumps(
        {
            "kv_connector": "NixlConnector",
            "kv_connector_module_path": CONNECTOR_MODULE,
            "kv_buffer_device": settings.kv.buffer_device,
            "kv_role": KV_ROLE[role],
            # A read that fails costs a recompute, not the request.
            "kv_load_failure_policy": "recompute",
            "engine_id": f"{role}-engine-{index:03d}",
            "kv_rank": 0 if role == "prefill" else 1,
            "kv_parallel_size": 2,
            "kv_connector_extra_config": {
                "backends": list(settings.kv.backends),
                "kv_recompute_threshold": settings.kv.recompute_threshold,
                "decoder_kv_blocks_ttl": settings.kv.decoder_blocks_ttl,
                "bidirectional_kv_xfer": settings.kv.bidirectional,
            },
        },
        separators=(",", ":"),
    )


def engine_environment(settings: Deployment, role: Role) -> tuple[tuple[str, str], ...]:
    """What the job exports, apart from the address, which only the node knows."""
    leg = leg_of(settings, role)
    target = settings.target
    environment = {
        **({"FI_PROVIDER": "efa"} if "LIBFABRIC" in settings.kv.backends else {}),
        **({"HF_HOME": str(target.hf_home)} if isinstance(target, ParallelClusterTarget) else {}),
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(leg.side_channel_port),
        "VLLM_LOG_STATS_INTERVAL": f"{settings.kv.stats_interval:g}",
        **leg.env,
    }
    return tuple(environment.items())


def leg_of(settings: Deployment, role: Role) -> Leg:
    return settings.legs.prefill if role == "prefill" else settings.legs.decode
