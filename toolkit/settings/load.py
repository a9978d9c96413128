"""File, environment and flags -> one validated Deployment, every value of which knows its source.

Flags beat environment, environment beats the file, the file beats the defaults.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from toolkit.errors import SettingsError
from toolkit.settings.deployment import Deployment
from toolkit.settings.source import Key, Layer, from_environment, from_file, from_flags, merge, nest

KINDS = "'embedded' or 'parallelcluster'"


@dataclass(frozen=True)
class Loaded:
    """A deployment and the source of each of its values, by dotted key."""

    deployment: Deployment
    file: Path
    sources: Mapping[str, str]

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """(dotted key, value, source) of every leaf, defaults included."""
        for key, value in flatten(self.deployment.model_dump(mode="json")):
            yield key, value, self.sources.get(key) or self._section_source(key) or "default"

    def _section_source(self, key: str) -> str | None:
        """A list or empty section is given whole, so its source stands at a key above."""
        while "." in key:
            key = key.rpartition(".")[0]
            if key in self.sources:
                return self.sources[key]
        return None


def load(file: Path, assignments: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Loaded:
    """Raises SettingsError that names every wrong key with its value, its source and what to write."""
    given = merge([from_file(file), from_environment(environ or {}), from_flags(assignments)])
    try:
        deployment = Deployment.model_validate(nest(given))
    except ValidationError as error:
        lines = [explain(detail, given) for detail in error.errors(include_url=False)]
        raise SettingsError(
            f"{file}: "
            + ("" if len(lines) == 1 else f"{len(lines)} settings are wrong.\n")
            + "\n".join(lines),
            next_step="correct the settings, then `toolkit settings check -f " + str(file) + "`",
        ) from error
    return Loaded(deployment, file, {".".join(key): value.source for key, value in given.items()})


def flatten(section: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        key = f"{at}.{name}" if at else name
        if isinstance(value, dict) and value:
            yield from flatten(value, key)
        else:
            yield key, value


def explain(detail: ErrorDetails, given: Layer) -> str:
    """One line for one wrong setting."""
    key = _key(detail)
    dotted = ".".join(key) or "the file"
    where = _source(key, given)
    kind = detail["type"]
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(key[-1], sorted(known := _siblings(key)), n=1, cutoff=0.5)
        hint = (
            f"did you mean {'.'.join((*key[:-1], close[0]))!r}?"
            if close
            else "valid keys: " + ", ".join(known)
        )
        return f"unknown key {dotted!r} ({where}); {hint}"
    if kind in ("missing", "union_tag_not_found"):
        wanted = f"{dotted}.kind" if kind == "union_tag_not_found" else dotted
        return f"{wanted!r} is missing; it has no default"
    message = detail["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "should be")
    message = message.replace("a valid dictionary or object to extract fields from", "a section of keys")
    if kind == "union_tag_invalid":
        given_kind = detail["input"].get("kind")
        return f"{dotted}.kind = {given_kind!r} ({_source((*key, 'kind'), given)}): should be {KINDS}"
    if kind == "string_pattern_mismatch":
        message = f"has characters it can't have; it must match {detail['ctx']['pattern']}"
    if not key or isinstance(detail["input"], (dict, Deployment)):
        return message if kind == "value_error" else f"{dotted}: {message} ({where})"
    return f"{dotted} = {detail['input']!r} ({where}): {message}"


def _key(detail: ErrorDetails) -> Key:
    """The dotted key of an error, without the tag that pydantic puts behind `target`."""
    parts = [str(part) for part in detail["loc"]]
    if len(parts) > 1 and parts[0] == "target":
        del parts[1]
    return tuple(part for part in parts if part != "[key]")


def _source(key: Key, given: Layer) -> str:
    for depth in range(len(key), 0, -1):
        if key[:depth] in given:
            return given[key[:depth]].source
    below = sorted(k for k in given if k[: len(key)] == key)
    return given[below[0]].source if key and below else "default"


def _siblings(key: Key) -> list[str]:
    """Keys that are valid beside `key`."""
    models: list[type[BaseModel]] = [Deployment]
    for part in key[:-1]:
        models = [
            inner
            for model in models
            if part in model.model_fields
            for inner in _models(model.model_fields[part].annotation)
        ]
    return sorted({name for model in models for name in model.model_fields})


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]
