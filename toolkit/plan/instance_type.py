"""What an EC2 instance type has, and the network interfaces ParallelCluster gives a node of it. Pure.

Facts come from DescribeInstanceTypes; a snapshot of the types this toolkit is for is shipped, for plans made
without AWS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import yaml

from toolkit.data import shipped

# Up to 3.14 ParallelCluster puts a combined `efa` interface on every card; from 3.15 on one ENA interface on
# card 0 and `efa-only` ones on all (its templates/queues_stack.py, add_network_interfaces).
EFA_ONLY_SINCE = (3, 15)


@dataclass(frozen=True)
class InstanceType:
    """`numa_nodes` is not in DescribeInstanceTypes: None where the snapshot does not have it."""

    name: str
    vcpus: int
    memory_mib: int
    gpus: int
    gpu: str | None  # such as "NVIDIA H200"
    network_cards: int
    interfaces_of_card_0: int
    efa_interfaces: int  # 0: no EFA
    usage_classes: tuple[str, ...]  # on-demand, spot, capacity-block
    numa_nodes: int | None = None


@dataclass(frozen=True)
class Nic:
    """An interface of a node's launch template; `efa-only` ones have no IP address."""

    card: int
    device_index: int
    kind: Literal["interface", "efa", "efa-only"]

    @property
    def has_address(self) -> bool:
        return self.kind != "efa-only"


@cache
def known_instance_types() -> dict[str, InstanceType]:
    """The shipped snapshot, by name."""
    table = yaml.safe_load(shipped("pcluster-config", "instance-types.yaml").read_text(encoding="utf-8"))
    return {
        name: InstanceType(name=name, **{**facts, "usage_classes": tuple(facts["usage_classes"])})
        for name, facts in table["types"].items()
    }


def version_tuple(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def nics(instance: InstanceType, *, efa: bool, version: str) -> tuple[Nic, ...]:
    """The interfaces of one node as ParallelCluster `version` makes them, card by card."""
    cards = range(1, instance.network_cards)
    if not efa or not instance.efa_interfaces:
        return (Nic(0, 0, "interface"), *(Nic(card, 1, "interface") for card in cards))
    if version_tuple(version) < EFA_ONLY_SINCE:
        return (Nic(0, 0, "efa"), *(Nic(card, 1, "efa") for card in cards))
    on_card_0 = instance.efa_interfaces == instance.network_cards
    if on_card_0 and instance.interfaces_of_card_0 < 2:
        first: tuple[Nic, ...] = (Nic(0, 0, "efa"),)
    elif on_card_0:
        first = (Nic(0, 0, "interface"), Nic(0, 1, "efa-only"))
    else:
        first = (Nic(0, 0, "interface"),)
    return (*first, *(Nic(card, 1, "efa-only") for card in cards))
