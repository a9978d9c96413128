"""A Python distribution's files -> a wheel, byte for byte the same each time. Pure.

No build backend and no network: a dry run must be able to name the digest of what would be sent. Layout as in
the packaging specification "Binary distribution format".
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError

TAG = "py3-none-any"
# The first moment that a zip archive can name.
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Distribution:
    """`metadata` and `entry_points` are the texts of METADATA and entry_points.txt; `files` by their path in
    the wheel."""

    name: str
    version: str
    metadata: str
    entry_points: str
    files: Mapping[str, bytes]

    @property
    def _stem(self) -> str:
        return f"{re.sub(r'[-_.]+', '_', self.name).lower()}-{self.version}"

    @property
    def wheel_name(self) -> str:
        return f"{self._stem}-{TAG}.whl"

    def wheel(self) -> bytes:
        info = f"{self._stem}.dist-info"
        about = f"Wheel-Version: 1.0\nGenerator: {self.name}\nRoot-Is-Purelib: true\nTag: {TAG}\n"
        content = {
            **self.files,
            f"{info}/METADATA": self.metadata.encode(),
            f"{info}/WHEEL": about.encode(),
        }
        if self.entry_points:
            content[f"{info}/entry_points.txt"] = self.entry_points.encode()
        record = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in sorted(content.items())]
        content[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
        return _zipped(content)


def from_project(project: Mapping[str, Any], version: str, files: Mapping[str, bytes]) -> Distribution:
    """From the table `project` of a pyproject.toml."""
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}"]
    lines += [f"Summary: {project['description']}"] if "description" in project else []
    lines += [f"License-Expression: {project['license']}"] if isinstance(project.get("license"), str) else []
    lines += [f"Requires-Python: {project['requires-python']}"] if "requires-python" in project else []
    lines += [f"Requires-Dist: {requirement}" for requirement in project.get("dependencies", ())]
    groups: dict[str, Mapping[str, str]] = dict(project.get("entry-points", {}))
    if scripts := project.get("scripts"):
        groups["console_scripts"] = scripts
    return Distribution(project["name"], version, "\n".join([*lines, ""]), _entry_points(groups), files)


def literal_version(source: bytes, where: str) -> str:
    """The value of `__version__ = "..."` in a module; raises ToolkitError if it has none."""
    found = re.search(r'^__version__ = "([^"]+)"', source.decode(), re.MULTILINE)
    if not found:
        raise ToolkitError(
            f'{where} has no line __version__ = "..."', next_step="install the toolkit again, it is damaged"
        )
    return found[1]


def _entry_points(groups: Mapping[str, Mapping[str, str]]) -> str:
    blocks = (
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""])
        for group, entries in groups.items()
    )
    return "\n".join(blocks)


def _zipped(content: Mapping[str, bytes]) -> bytes:
    """Stored, not deflated: the payload is compressed as a whole."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        # RECORD comes last, as the specification recommends.
        for path in sorted(content, key=lambda path: (path.endswith(".dist-info/RECORD"), path)):
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content[path])
    return target.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
