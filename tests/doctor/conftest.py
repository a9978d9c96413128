"""What the doctor's tests judge: recorded outputs, a healthy node, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.doctor.node_facts import NodeFacts, node_facts
from toolkit.doctor.wanted import SharedFolder, Versions, Wanted

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def recorded() -> Callable[[str], str]:
    """The text of a fixture file; its first lines say where it comes from."""
    return lambda name: (FIXTURES / name).read_text(encoding="utf-8")


@pytest.fixture
def healthy(recorded: Callable[[str], str]) -> NodeFacts:
    return node_facts(recorded("p5en.txt"))


@pytest.fixture
def wanted() -> Wanted:
    """A GPU node of the published environment."""
    return Wanted(
        gpus=8,
        efa_devices=16,
        numa_nodes=2,
        versions=Versions(
            kernel="6.14.0-1018-aws",
            nvidia_driver="580.126.16",
            cuda="13.0",
            efa_installer="1.50.0",
            efa_module="3.3.0g",
            libfabric="2.6.0amzn1.0",
            rdma_core="64.0amzn0",
        ),
        shared=(
            SharedFolder("/fsx", "lustre"),
            SharedFolder("/fsx/runs", "lustre", needed=False),
            SharedFolder("/fsx/huggingface", "lustre"),
        ),
        ports=(8100, 5600, 8200),
        backends=("LIBFABRIC",),
        tensor_parallel=8,
        parallelcluster=True,
    )
