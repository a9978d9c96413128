"""The toolkit and the connector, as shipped -> the archive that an image build installs. Pure but for reading
what is shipped.

The same sources give the same bytes, hence the same address in the bucket. It works from a checkout and from
an installed wheel; the latter has no pyproject.toml of the toolkit, so its installed metadata is taken.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from toolkit import __version__
from toolkit.data import shipped
from toolkit.errors import ToolkitError
from toolkit.render.wheel import Distribution, from_project, literal_version

TOOLKIT = "pd-toolkit"
# What comes and goes in a checkout without being part of a distribution.
NOT_SHIPPED = ("__pycache__", "tests", "build", "dist")
# The compiled form's extension modules are of this machine's Python; the sources lie beside them.
COMPILED = (".so", ".pyd")


@dataclass(frozen=True)
class Payload:
    """`content` is a tar.gz with `wheels` in the folder wheels/."""

    content: bytes
    wheels: tuple[str, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def render_payload() -> Payload:
    """Raises ToolkitError if this installation lacks a part of itself."""
    wheels = {each.wheel_name: each.wheel() for each in (connector(), this_toolkit())}
    return Payload(_archive({f"wheels/{name}": content for name, content in wheels.items()}), tuple(wheels))


def connector(source: Traversable | None = None) -> Distribution:
    """The vLLM plugin, from its shipped sources."""
    source = source or shipped("connector")
    project = tomllib.loads(_text(source / "pyproject.toml"))["project"]
    found = dict(_tree(source / "src"))
    version = literal_version(found["pd_connector/__init__.py"], "pd_connector/__init__.py")
    return from_project(project, version, found)


def this_toolkit(package: Traversable | None = None) -> Distribution:
    """The toolkit that is running."""
    package = package or files("toolkit")
    found = {f"toolkit/{path}": content for path, content in _tree(package)}
    checkout = package.parent / "pyproject.toml" if isinstance(package, Path) else None
    if checkout and checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == TOOLKIT:
            return from_project(project, __version__, found)
    try:
        installed = metadata.distribution(TOOLKIT)
    except metadata.PackageNotFoundError as error:
        raise ToolkitError(
            f"the toolkit runs neither from a checkout nor from an installed {TOOLKIT}",
            next_step=f"install it with `pip install {TOOLKIT}`, or run it in its checkout",
        ) from error
    text, entry_points = installed.read_text("METADATA"), installed.read_text("entry_points.txt")
    return Distribution(TOOLKIT, installed.version, text or "", entry_points or "", found)


def _tree(folder: Traversable, at: str = "") -> Iterator[tuple[str, bytes]]:
    """Every file below, links followed, in the order of names."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name in NOT_SHIPPED or entry.name.endswith(COMPILED):
            continue
        if entry.is_dir():
            yield from _tree(entry, f"{at}{entry.name}/")
        else:
            yield f"{at}{entry.name}", entry.read_bytes()


def _text(entry: Traversable) -> str:
    if not entry.is_file():
        raise ToolkitError(
            f"{entry} is not there", next_step="install the toolkit again: its data is not complete"
        )
    return entry.read_text(encoding="utf-8")


def _archive(content: dict[str, bytes]) -> bytes:
    """Owned by root and without times, so that nothing of this machine and moment is in it."""
    target = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=target, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, data in sorted(content.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            entry.uname = entry.gname = "root"
            archive.addfile(entry, io.BytesIO(data))
    return target.getvalue()
