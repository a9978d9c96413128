"""EmbeddedPlan <-> the JSON that crosses to the root process."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.plan.embedded import EmbeddedPlan, NodePlan


def encode_plan(plan: EmbeddedPlan) -> dict[str, Any]:
    return asdict(plan) | {"root": str(plan.root), "engine_env": str(plan.engine_env)}


def decode_plan(data: dict[str, Any]) -> EmbeddedPlan:
    nodes = tuple(NodePlan(**{**node, "cores": tuple(node["cores"])}) for node in data["nodes"])
    paths = {"root": Path(data["root"]), "engine_env": Path(data["engine_env"])}
    return EmbeddedPlan(**{**data, **paths, "nodes": nodes})
