"""A cluster's plan -> ParallelCluster's configuration. Pure: the text returned is the text sent."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined, Template

from toolkit.data import shipped
from toolkit.plan.cluster import ClusterPlan, Script


def render_cluster(plan: ClusterPlan) -> str:
    """The YAML that `pcluster create-cluster` gets, overrides included."""
    text = _template().render(plan=plan)
    if not plan.overrides:
        return text
    return yaml.safe_dump(_merged(yaml.safe_load(text), plan.overrides), sort_keys=False)


@cache
def _template() -> Template:
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    environment.filters["json"] = _yaml_value
    environment.filters["s3_access"] = _s3_access
    return environment.from_string(shipped("pcluster-config", "cluster.yaml.j2").read_text(encoding="utf-8"))


def _yaml_value(value: Any) -> str:
    """As JSON, which is YAML but for what is no ASCII: YAML breaks lines at some of it, and writes what lies
    beyond U+FFFF in its own way."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[^ -~]", lambda each: f"\\U{ord(each[0]):08x}", text)


def _s3_access(scripts: Sequence[Script]) -> list[tuple[str, str]]:
    """(bucket, key pattern) that nodes must be able to read for their scripts, each once."""
    pairs = ((script.bucket, f"{script.key.rpartition('/')[0]}/*".lstrip("/")) for script in scripts)
    return list(dict.fromkeys(pairs))


def _merged(document: Any, overrides: Mapping[str, Any]) -> Any:
    """`overrides` beside `document`: sections are merged, lists joined. Settings refuse what would replace a
    value, see settings/override.py."""
    merged = copy.copy(document)
    for key, value in overrides.items():
        inner = merged.get(key)
        if isinstance(inner, dict) and isinstance(value, dict):
            merged[key] = _merged(inner, value)
        elif isinstance(inner, list) and isinstance(value, list):
            merged[key] = [*inner, *(each for each in value if each not in inner)]
        else:
            merged[key] = value
    return merged
