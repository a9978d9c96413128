"""Layers of settings before validation: a nested mapping in which every leaf knows where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from toolkit.errors import SettingsError

Key = tuple[str, ...]

ENVIRONMENT_PREFIX = "TOOLKIT__"


@dataclass(frozen=True)
class Given:
    """A value and its source, such as `file deployments/embedded.yaml, line 12`."""

    value: Any
    source: str


Layer = dict[Key, Given]


def from_file(path: Path) -> Layer:
    """The leaves of a YAML file; raises SettingsError when it can't be read as a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror}.", next_step="name a deployment file with -f FILE, see deployments/"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text.", next_step="give a YAML file with -f FILE") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or "not YAML"
        raise SettingsError(f"{where}: {problem}.", next_step="correct the YAML of this line") from error
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError(f"{path}: holds no settings.", next_step="see deployments/ for examples")
    return dict(_leaves(node, data, (), path))


def _leaves(
    node: yaml.MappingNode, data: Mapping[str, Any], at: Key, path: Path
) -> Iterator[tuple[Key, Given]]:
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        name = str(key_node.value)
        if name in seen:
            raise SettingsError(
                f"{path}, line {line}: {'.'.join((*at, name))!r} is given twice, first on line {seen[name]}.",
                next_step="keep one of them",
            )
        seen[name] = line
        value = data.get(name)
        if isinstance(value_node, yaml.MappingNode) and isinstance(value, dict) and value:
            yield from _leaves(value_node, value, (*at, name), path)
        else:
            yield (*at, name), Given(value, f"file {path}, line {line}")


def from_environment(environ: Mapping[str, str]) -> Layer:
    """`TOOLKIT__KV__RECOMPUTE_THRESHOLD=128` sets kv.recompute_threshold.

    Names below an `env` section are environment variables themselves and keep their case.
    """
    layer: Layer = {}
    for name, value in sorted(environ.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            path, env, variable = name.removeprefix(ENVIRONMENT_PREFIX).partition("__ENV__")
            key = (*path.lower().split("__"), *(("env", variable) if env else ()))
            layer[key] = Given(_scalar(value, f"environment {name}"), f"environment {name}")
    return layer


def from_flags(assignments: Sequence[str]) -> Layer:
    """`--set kv.recompute_threshold=128`; the value is read as YAML, so `[1, 2]` is a list."""
    layer: Layer = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not all(key.split(".")):
            raise SettingsError(
                f"--set {assignment}: is not KEY=VALUE.", next_step="write it as --set kv.bidirectional=false"
            )
        layer[tuple(key.strip().split("."))] = Given(_scalar(value, f"--set {key}"), f"--set {key.strip()}")
    return layer


def _scalar(text: str, source: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{source}: {text!r} is not a YAML value.", next_step="quote it") from error


def merge(layers: Sequence[Layer]) -> Layer:
    """Later layers win; a leaf replaces a whole section of the same name, and the other way round."""
    merged: Layer = {}
    for layer in layers:
        for key, given in layer.items():
            for other in [k for k in merged if k[: len(key)] == key or key[: len(k)] == k]:
                del merged[other]
            merged[key] = given
    return merged


def nest(layer: Layer) -> dict[str, Any]:
    """The plain nested mapping that a model validates."""
    root: dict[str, Any] = {}
    for key, given in layer.items():
        here = root
        for part in key[:-1]:
            here = here.setdefault(part, {})
        here[key[-1]] = given.value
    return root
