"""ParallelCluster's final configuration, overrides included, read for what it refers to. Pure.

Every path is as a person writes it: `Scheduling.SlurmQueues[0].Networking.SubnetIds`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that start alike: the head node, a queue, or a pool of login nodes."""

    path: str
    name: str
    section: Mapping[str, Any]

    @property
    def networking(self) -> Mapping[str, Any]:
        return section(self.section, "Networking")

    @property
    def subnets(self) -> tuple[str, ...]:
        one = self.networking.get("SubnetId")
        return tuple(map(str, [one] if one else items(self.networking, "SubnetIds")))

    @property
    def security_groups(self) -> tuple[str, ...]:
        keys = ("SecurityGroups", "AdditionalSecurityGroups")
        return tuple(str(group) for key in keys for group in items(self.networking, key))

    @property
    def scripts(self) -> tuple[tuple[str, str], ...]:
        """(path, address) of every script its nodes run."""
        found = []
        for event, action in section(self.section, "CustomActions").items():
            path = f"{self.path}.CustomActions.{event}"
            for script in [action, *items(action, "Sequence")] if isinstance(action, Mapping) else []:
                if isinstance(script, Mapping) and isinstance(script.get("Script"), str):
                    found.append((path, script["Script"]))
        return tuple(found)


def section(at: object, key: str) -> Mapping[str, Any]:
    """The section `key` of a section; empty where there is none or where it is something else."""
    inner = at.get(key) if isinstance(at, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def items(at: object, key: str) -> list[Any]:
    """The list `key` of a section; empty where there is none."""
    inner = at.get(key) if isinstance(at, Mapping) else None
    return inner if isinstance(inner, list) else []


def value_at(document: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path through sections; None where there is none."""
    at: Any = document
    for key in path.split("."):
        at = at.get(key) if isinstance(at, Mapping) else None
    return at


def node_groups(document: Mapping[str, Any]) -> tuple[NodeGroup, ...]:
    """The head node first, then queues, then pools of login nodes."""
    groups = [NodeGroup("HeadNode", "head node", section(document, "HeadNode"))]
    lists = (("Scheduling.SlurmQueues", "queue"), ("LoginNodes.Pools", "login pool"))
    for path, word in lists:
        parent, _, key = path.partition(".")
        for number, each in enumerate(items(section(document, parent), key)):
            if isinstance(each, Mapping):
                groups.append(NodeGroup(f"{path}[{number}]", f"{word} {each.get('Name')}", each))
    return tuple(groups)


def subnets(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Ids of all subnets, each once; words that stand for one not made yet are left out."""
    found = (name for group in node_groups(document) for name in group.subnets)
    return tuple(dict.fromkeys(name for name in found if name.startswith("subnet-")))


def security_groups(document: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for group in node_groups(document) for each in group.security_groups))


def scripts(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Addresses of all scripts, each once."""
    return tuple(dict.fromkeys(url for group in node_groups(document) for _, url in group.scripts))


def bucket_and_key(url: str) -> tuple[str, str] | None:
    """Of an s3:// address."""
    found = re.fullmatch(r"s3://([^/]+)/(.+)", url)
    return (found[1], found[2]) if found else None


def mounts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(path, folder) of everything that is mounted on nodes."""
    for number, storage in enumerate(items(document, "SharedStorage")):
        if isinstance(storage, Mapping) and storage.get("MountDir"):
            yield f"SharedStorage[{number}].MountDir", str(storage["MountDir"])
    for group in node_groups(document):
        local = section(section(group.section, "ComputeSettings") or group.section, "LocalStorage")
        if folder := section(local, "EphemeralVolume").get("MountDir"):
            yield f"{group.path}.LocalStorage.EphemeralVolume.MountDir", str(folder)
