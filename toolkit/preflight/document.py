"""Checks of ParallelCluster's configuration as it will be sent, overrides included."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.plan.cluster_document import value_at
from toolkit.preflight.problem import Problem
from toolkit.preflight.schema_keys import schema_keys
from toolkit.preflight.subject import Check, Subject

OVERRIDES = "target.overrides"
_FITS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "number": lambda value: not isinstance(value, bool) and re.fullmatch(r"-?[\d.]+", str(value)) is not None,
    "switch": lambda value: isinstance(value, bool),
    "mapping": lambda value: isinstance(value, Mapping),
    "any": lambda value: True,  # noqa: ARG005
}
_CALLED = {"text": "a text", "number": "a number", "switch": "true or false", "mapping": "a mapping"}


@dataclass(frozen=True)
class Fault:
    """`path` is that of the key in the configuration; `unknown`: the key itself is wrong, not its value."""

    unknown: bool
    path: str
    value: Any
    reason: str
    next_step: str


def keys_known(s: Subject) -> Iterator[Problem]:
    yield from _faults(s, unknown=True)


def values_fit(s: Subject) -> Iterator[Problem]:
    yield from _faults(s, unknown=False)


def _faults(s: Subject, *, unknown: bool) -> Iterator[Problem]:
    for fault in walk(s.document, schema_keys().root, "", s.plan.version):
        if fault.unknown == unknown:
            yield s.error(f"{OVERRIDES}.{fault.path}", fault.reason, fault.next_step, value=fault.value)


def walk(value: Any, kind: str, path: str, version: str) -> Iterator[Fault]:
    """Everything at and below `path` that a ParallelCluster of that version would not take."""
    key = path.rpartition(".")[2]
    if kind.startswith("["):
        if not isinstance(value, list):
            yield Fault(False, path, value, "must be a list", f"write it as `{key}: [...]`")
            return
        for number, each in enumerate(value):
            yield from walk(each, kind[1:-1], f"{path}[{number}]", version)
    elif kind in _FITS:
        if not _FITS[kind](value):
            yield Fault(False, path, value, f"must be {_CALLED[kind]}", f"correct the value of {key}")
    elif isinstance(value, Mapping):
        yield from _walk_section(value, kind, path, version)
    else:
        keys = ", ".join(schema_keys().of(kind, version))
        yield Fault(False, path, value, "must be a section", f"write its keys below {key}: {keys}")


def _walk_section(value: Mapping[Any, Any], section: str, path: str, version: str) -> Iterator[Fault]:
    kinds = schema_keys().of(section, version)
    for key, inner in value.items():
        name = str(key) if str(key).isprintable() else repr(key)
        at = f"{path}.{name}" if path else name
        if key in kinds:
            yield from walk(inner, kinds[key], at, version)
        else:
            yield Fault(True, at, inner, *_unknown(section, str(key), path, version))


def _unknown(section: str, key: str, path: str, version: str) -> tuple[str, str]:
    """(reason, next step) for a key that its section does not have."""
    table = schema_keys()
    if having := table.versions_with(section, key):
        return (
            f"is not a key of ParallelCluster {version}, but of {' and '.join(having)}",
            f"leave it out, or set target.version: {having[-1]}",
        )
    keys = table.of(section, version)
    where = path or "the configuration"
    folded = {name.lower(): name for name in keys}
    near = difflib.get_close_matches(key.lower(), folded, n=1)
    elsewhere = sorted(name for name, inner in table.sections.items() if key in inner)
    hint = f"; did you mean {folded[near[0]]}?" if near else ""
    if elsewhere and not near:
        hint = f"; it is one of {', '.join(elsewhere[:3])}"
    return f"is not a key of {where}{hint}", f"its keys are {', '.join(keys)}"


# (path in the configuration, values that do harm, what then happens, what to do)
_HARMFUL: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
    (
        "DevSettings.EfaInterfaceType",
        lambda value: value == "efa",
        "every EFA interface takes an IP address of the subnet again, as before 3.15",
        "leave it out",
    ),
    (
        "DevSettings.Timeouts.ComputeNodeBootstrapTimeout",
        lambda value: isinstance(value, int) and value < 1200,
        "a node that is not ready in that time is replaced, for ever if that is its usual time",
        "leave it at 2100 seconds or more",
    ),
    (
        "Scheduling.SlurmSettings.EnableMemoryBasedScheduling",
        lambda value: value is True,
        "a job that asks for no memory then gets its node's whole memory, so no second one fits there",
        "leave it off",
    ),
    (
        "DeploymentSettings.DefaultUserHome",
        lambda value: value == "Local",
        "the user's home is then not shared by the nodes",
        "leave it at Shared",
    ),
    (
        "HeadNode.Dcv.AllowedIps",
        lambda value: value == "0.0.0.0/0",
        "the whole internet may try the head node's desktop",
        "set it to your own network",
    ),
)


def overrides_do_no_harm(s: Subject) -> Iterator[Problem]:
    for path, harmful, what, step in _HARMFUL:
        value = value_at(s.document, path)
        if harmful(value):
            yield s.warning(f"{OVERRIDES}.{path}", what, step, value=value)


CHECKS: tuple[Check, ...] = (keys_known, values_fit, overrides_do_no_harm)
