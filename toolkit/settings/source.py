"""Layers of settings before validation: a nested mapping in which every leaf knows where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import SettingsError
from toolkit.settings.document import Document, DocumentError, Key
from toolkit.settings.shown import cut, shown, shown_key

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
    layer: Layer = {}
    try:
        document = Document(text)
        for leaf in document.leaves():
            layer[leaf.key] = Given(leaf.value, f"file {path}, line {leaf.line}")
    except DocumentError as error:
        where = f"{path}, line {error.line}" if error.line else str(path)
        raise SettingsError(
            f"{where}: {error.problem}.", next_step="correct it and `toolkit settings check` again"
        ) from error
    if not document.is_section:
        raise SettingsError(f"{path}: holds no settings.", next_step="see deployments/ for examples")
    return layer


def from_environment(environ: Mapping[str, str]) -> Layer:
    """`TOOLKIT__KV__RECOMPUTE_THRESHOLD=128` sets kv.recompute_threshold.

    Names below an `env` section are environment variables themselves and keep their case.
    """
    layer: Layer = {}
    for name, value in sorted(environ.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            path, env, variable = name.removeprefix(ENVIRONMENT_PREFIX).partition("__ENV__")
            key = (*path.lower().split("__"), *(("env", variable) if env else ()))
            if not all(key):
                raise SettingsError(
                    f"the environment variable {shown_key(name)} names no setting.",
                    next_step="unset it, or name a setting, such as TOOLKIT__KV__RECOMPUTE_THRESHOLD",
                )
            layer[key] = _given(value, f"environment {name}")
    return layer


def from_flags(assignments: Sequence[str]) -> Layer:
    """`--set kv.recompute_threshold=128`; the value is read as YAML, so `[1, 2]` is a list."""
    layer: Layer = {}
    for assignment in assignments:
        dotted, equals, value = assignment.partition("=")
        key = tuple(dotted.strip().split("."))
        if not equals or not all(part.strip() for part in key):
            raise SettingsError(
                f"--set {cut(assignment)}: is not KEY=VALUE.",
                next_step="write it as --set kv.bidirectional=false",
            )
        layer[key] = _given(value, f"--set {shown_key(dotted.strip())}")
    return layer


def _given(text: str, source: str) -> Given:
    try:
        return Given(Document(text).value(), source)
    except DocumentError as error:
        raise SettingsError(
            f"{source} = {shown(text)}: {error.problem}.", next_step="give a YAML value; quote text"
        ) from error


def merge(layers: Sequence[Layer]) -> Layer:
    """Later layers win; a leaf replaces a whole section of the same name, and the other way round."""
    merged: Layer = {}
    sections: set[Key] = set()  # so that only a key which may hide others is compared with all of them
    for layer in layers:
        for key, given in layer.items():
            above = [key[:depth] for depth in range(1, len(key))]
            hidden = [k for k in merged if k[: len(key)] == key] if key in sections else [key]
            for other in (*above, *hidden):
                merged.pop(other, None)
            merged[key] = given
            sections.update(above)
    return merged
