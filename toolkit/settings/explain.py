"""What validation found -> what the user reads: key, value, source, and what to write instead."""

from __future__ import annotations

import difflib
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from toolkit.settings.base import ALLOWED, DISAGREE
from toolkit.settings.deployment import Deployment
from toolkit.settings.document import Key
from toolkit.settings.shown import shown, shown_key
from toolkit.settings.source import Layer

KINDS = "'embedded' or 'parallelcluster'"
MOST = 20

# Pydantic's words for types, in a user's.
_SHOULD_BE = {
    "tuple_type": "should be a list",
    "model_type": "should be a section of keys",
    "model_attributes_type": "should be a section of keys",
    "dict_type": "should be a section of keys",
    "path_type": "should be a path, a string",
    "ip_v4_network": "should be an IPv4 network, such as 10.77.0.0/24",
}


def explain(error: ValidationError, given: Layer) -> str:
    """One line for each wrong setting, the first MOST of them."""
    found = error.errors(include_url=False)
    holders = {_key(detail)[:-1] for detail in found}
    # Pydantic counts right items only: a list of wrong ones is not too short besides.
    details = [detail for detail in found if detail["type"] != "too_short" or _key(detail) not in holders]
    lines = [_line(detail, given) for detail in details[:MOST]]
    if len(details) == 1:
        return lines[0]
    more = [f"... and {len(details) - MOST} more"] if len(details) > MOST else []
    return "\n".join([f"{len(details)} settings are wrong.", *lines, *more])


def is_section(key: Key) -> bool:
    """Whether `key` names a section of settings, or a mapping such as `env`."""
    fields = [model.model_fields[key[-1]] for model in _around(key) if key[-1] in model.model_fields]
    return any(_models(field.annotation) or get_origin(field.annotation) is dict for field in fields)


def _line(detail: ErrorDetails, given: Layer) -> str:
    key = _key(detail)
    dotted = shown_key(".".join(key))
    where = _source(key, given)
    kind = detail["type"]
    if kind == DISAGREE:
        return _disagreement(detail, key, given)
    if kind == "extra_forbidden":
        return f"unknown key {shown('.'.join(key))} ({where}); {_hint(key)}"
    if kind in ("missing", "union_tag_not_found"):
        wanted = f"{dotted}.kind" if kind == "union_tag_not_found" else dotted
        empty = f" ({where} gives nothing)" if key in given else ""
        return f"'{wanted}' is missing{empty}; it has no default"
    if kind == "union_tag_invalid":
        given_kind = shown(detail["input"].get("kind"))
        return f"{dotted}.kind = {given_kind} ({_source((*key, 'kind'), given)}): should be {KINDS}"
    if detail["loc"][-1:] == ("[key]",):
        dotted = shown_key(".".join(key[:-1]))
        return f"{dotted}: the name {shown(detail['input'])} ({where}) {_message(detail)}"
    return f"{dotted} = {shown(detail['input'])} ({where}): {_message(detail)}"


def _message(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind in _SHOULD_BE:
        return _SHOULD_BE[kind]
    if kind == "string_pattern_mismatch":
        return ALLOWED[detail["ctx"]["pattern"]]
    message = detail["msg"].removeprefix("Value error, ").replace("Input should", "should")
    return message.replace("Tuple should", "should").replace(" after validation", "")


def _disagreement(detail: ErrorDetails, key: Key, given: Layer) -> str:
    """Values that exclude each other, each with its source."""
    sources = []
    for below in detail["ctx"]["keys"]:
        one = (*key, *below.split("."))
        sources.append(f"{'.'.join(one)}: {_source(one, given)}")
    at = f"{'.'.join(key)}: " if key else ""
    return f"{at}{detail['ctx']['message']} ({'; '.join(sources)})"


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


def _hint(key: Key) -> str:
    known = sorted({name for model in _around(key) for name in model.model_fields})
    close = difflib.get_close_matches(key[-1][:100], known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{'.'.join((*key[:-1], close[0]))}'?"
    return "valid keys: " + ", ".join(known)


def _around(key: Key) -> list[type[BaseModel]]:
    """The sections that may hold the last part of `key`."""
    models: list[type[BaseModel]] = [Deployment]
    for part in key[:-1]:
        models = [
            inner
            for model in models
            if part in model.model_fields
            for inner in _models(model.model_fields[part].annotation)
        ]
    return models


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]
