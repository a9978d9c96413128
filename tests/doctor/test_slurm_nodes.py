"""Slurm's own lists of nodes and partitions, as three of its versions print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.doctor.slurm_nodes import SlurmNode, SlurmPartition, parse_nodes, parse_partitions
from toolkit.errors import ToolkitError

SLURM = Path(__file__).parent / "slurm"


@pytest.mark.parametrize("name", ["sinfo-22.05", "scontrol-nodes-24.11.5", "scontrol-nodes-26.05.5"])
def test_recorded_nodes_of_three_slurms(name: str) -> None:
    nodes = parse_nodes((SLURM / f"{name}.json").read_text())
    assert [(n.name, n.gpus, n.unfit, n.partitions) for n in nodes] == [
        ("decode-1", 8, False, ("gpu",)),
        ("prefill-1", 8, False, ("gpu",)),
        ("router", 0, False, ("head",)),
    ]
    assert {n.states[0] for n in nodes} <= {"IDLE", "MIXED"}


def test_flags_of_2205_are_states() -> None:
    text = (
        (SLURM / "sinfo-22.05.json")
        .read_text()
        .replace('"state_flags": [\n      ]', '"state_flags": ["DRAIN", "NOT_RESPONDING"]')
    )
    first = parse_nodes(text)[0]
    assert first.states == ("MIXED", "DRAIN", "NOT_RESPONDING")
    assert first.unfit


def test_partitions_and_what_is_none() -> None:
    text = "PartitionName=gpu AllowGroups=ALL State=INACTIVE TotalCPUs=16\nPartitionName=router State=UP\n"
    assert parse_partitions(text) == (SlurmPartition("gpu", "INACTIVE"), SlurmPartition("router", "UP"))
    with pytest.raises(ToolkitError, match="list of nodes"):
        parse_nodes("slurm_load_node: Unable to contact slurm controller")


def _node(*states: str) -> SlurmNode:
    return SlurmNode("gpu-1", states, "", ("gpu",), 8, "", 0)


def test_a_cloud_node_without_slurmd_is_fit_while_its_power_says_why() -> None:
    assert not _node("IDLE", "CLOUD", "NOT_RESPONDING", "POWERING_UP").unfit
    assert not _node("IDLE", "CLOUD", "POWERED_DOWN").unfit
    assert _node("IDLE", "CLOUD", "NOT_RESPONDING").unfit
    assert _node("DOWN", "CLOUD", "POWERING_UP").unfit
    assert not _node("IDLE", "CLOUD", "POWERED_DOWN").probed
    assert _node("ALLOCATED", "CLOUD").probed
