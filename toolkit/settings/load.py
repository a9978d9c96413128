"""File, environment and flags -> one validated Deployment, every value of which knows its source.

Flags beat environment, environment beats the file, the file beats the defaults.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.errors import SettingsError
from toolkit.settings.deployment import Deployment
from toolkit.settings.document import nest
from toolkit.settings.explain import explain, is_section
from toolkit.settings.source import from_environment, from_file, from_flags, merge


@dataclass(frozen=True)
class Loaded:
    """A deployment and the source of each of its values, by dotted key."""

    deployment: Deployment
    file: Path
    sources: Mapping[str, str]
    assignments: tuple[str, ...] = ()

    @property
    def arguments(self) -> str:
        return arguments(self.file, self.assignments)

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


def arguments(file: Path, assignments: Sequence[str]) -> str:
    """What gives the same settings again on a command line: `-f FILE --set KEY=VALUE`, quoted."""
    sets = (word for assignment in assignments for word in ("--set", assignment))
    return shlex.join(("-f", str(file), *sets))


def load(file: Path, assignments: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Loaded:
    """Raises SettingsError that names every wrong key with its value, its source and what to write."""
    given = merge([from_file(file), from_environment(environ or {}), from_flags(assignments)])
    # A section with nothing in it has its defaults; its source is still that of its values.
    filled = {key: value for key, value in given.items() if value.value is not None or not is_section(key)}
    try:
        deployment = Deployment.model_validate(nest((key, value.value) for key, value in filled.items()))
    except ValidationError as error:
        raise SettingsError(
            f"{file}: " + explain(error, given),
            next_step="correct the settings, then `toolkit settings check -f " + str(file) + "`",
        ) from error
    return Loaded(
        deployment, file, {".".join(key): value.source for key, value in given.items()}, tuple(assignments)
    )


def flatten(section: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        key = f"{at}.{name}" if at else name
        if isinstance(value, dict) and value:
            yield from flatten(value, key)
        else:
            yield key, value
