"""A plan that no other cluster on this machine shares: folder, network and port of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.plan.embedded import EmbeddedPlan, NodePlan


@pytest.fixture
def make_plan() -> Callable[..., EmbeddedPlan]:
    def make(root: Path, network: str = "10.78.0") -> EmbeddedPlan:
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
                NodePlan("decode-1", "gpu", f"{network}.12", 8, 8, (1,)),
                NodePlan("router-1", "router", f"{network}.13", 0, 4, (0, 1)),
            ),
        )

    return make
