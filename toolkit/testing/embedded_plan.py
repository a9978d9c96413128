"""An embedded cluster for tests that meets no other: a folder, network and ports of its own."""

from __future__ import annotations

from pathlib import Path

from toolkit.plan.embedded import EmbeddedPlan, NodePlan


def embedded_plan(root: Path, network: str = "10.78.0", cores: int = 2) -> EmbeddedPlan:
    """One prefill, one decode and the router's node in `network`.0/24, on `cores` cores."""
    return EmbeddedPlan(
        root=root,
        engine_env=root / "engine",
        model="tiny-qwen3",
        network=f"{network}.0/24",
        prefix_length=24,
        head_address=f"{network}.1",
        slurmctld_port=16917,
        slurmd_port=16918,
        memory_mb=20000,
        nodes=(
            NodePlan("prefill-1", "gpu", f"{network}.11", 8, 8, (0,)),
            NodePlan("decode-1", "gpu", f"{network}.12", 8, 8, (1 % cores,)),
            NodePlan("router-1", "router", f"{network}.13", 0, 4, tuple(range(cores))),
        ),
    )
