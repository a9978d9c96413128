"""Sections and keys of ParallelCluster's configuration, from pcluster-config/schema-keys.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import yaml

from toolkit.data import shipped


@dataclass(frozen=True)
class SchemaKeys:
    """`sections`: name -> key -> kind. `only`: tested version -> `Section.Key` that no other one has."""

    root: str
    versions: tuple[str, ...]
    regions: tuple[str, ...]
    sections: Mapping[str, Mapping[str, str]]
    only: Mapping[str, frozenset[str]]

    def of(self, section: str, version: str) -> dict[str, str]:
        """Keys that `version` has in a section; a version that is not tested is taken to have all."""
        others = {
            name
            for other, names in self.only.items()
            if version in self.versions and other != version
            for name in names
        }
        return {key: kind for key, kind in self.sections[section].items() if f"{section}.{key}" not in others}

    def versions_with(self, section: str, key: str) -> tuple[str, ...]:
        """The tested versions that have a key, where not all of them do."""
        return tuple(version for version, names in self.only.items() if f"{section}.{key}" in names)


@cache
def schema_keys() -> SchemaKeys:
    text = shipped("pcluster-config", "schema-keys.yaml").read_text(encoding="utf-8")
    table = yaml.load(text, Loader=yaml.CSafeLoader)
    return SchemaKeys(
        root=table["root"],
        versions=tuple(table["versions"]),
        regions=tuple(table["regions"]),
        sections=table["sections"],
        only={version: frozenset(names) for version, names in table["only"].items()},
    )
