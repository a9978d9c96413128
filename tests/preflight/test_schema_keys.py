"""pcluster-config/schema-keys.yaml is what the installed ParallelClusters say; --golden writes it anew."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolkit.remote.pcluster_env import ensure_pcluster

FILE = Path(__file__).parents[2] / "pcluster-config" / "schema-keys.yaml"
VERSIONS = ("3.14.2", "3.16.1")
HEAD = """\
# Sections and keys of ParallelCluster's configuration, for naming a misspelt one. Written by
# `pytest tests/preflight/test_schema_keys.py --golden` from the versions' own schemas.
# A value is text, number, switch, mapping, any, a section's name, or a list of one of these: [text].
"""


def dumped(version: str) -> dict[str, Any]:
    env = ensure_pcluster(version, lambda _: None)
    script = Path(__file__).with_name("dump_schema.py")
    done = subprocess.run(
        [str(env.folder / "bin" / "python"), str(script)],
        capture_output=True,
        text=True,
        check=True,
        env={"AWS_DEFAULT_REGION": "ap-south-1", "PATH": "/usr/bin:/bin"},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    found["sections"] = {
        # Of the scheduler that this toolkit does not use.
        name: {key: kind for key, kind in keys.items() if not key.startswith("AwsBatch")}
        for name, keys in found["sections"].items()
        if not name.startswith("AwsBatch")
    }
    return found


def merged() -> str:
    """One table of all versions' keys, and which of them only one version has."""
    schemas = {version: dumped(version) for version in VERSIONS}
    sections: dict[str, dict[str, str]] = {}
    for schema in schemas.values():
        for name, keys in schema["sections"].items():
            sections.setdefault(name, {}).update(keys)
    only = {
        version: sorted(
            f"{name}.{key}"
            for name, keys in sections.items()
            for key in keys
            if name in schema["sections"]
            and key in schema["sections"][name]
            and not any(
                key in other["sections"].get(name, {}) for other in schemas.values() if other is not schema
            )
        )
        for version, schema in schemas.items()
    }
    regions = sorted({region for schema in schemas.values() for region in schema["regions"]})
    lines = [f"root: {schemas[VERSIONS[0]]['root']}", "versions:"]
    lines += [f'  - "{version}"' for version in VERSIONS]
    body = {
        "regions": regions,
        "only": only,
        "sections": {name: dict(sorted(keys.items())) for name, keys in sorted(sections.items())},
    }
    return HEAD + "\n".join(lines) + "\n" + yaml.safe_dump(body, sort_keys=False, width=100)


@pytest.mark.aws
@pytest.mark.slow
def test_the_file_is_what_both_versions_say(request: pytest.FixtureRequest) -> None:
    text = merged()
    if request.config.getoption("--golden"):
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text
