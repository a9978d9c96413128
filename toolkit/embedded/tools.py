"""Finds executables, also those in the sbin folders that a user's PATH often lacks."""

from __future__ import annotations

import os
import shutil

from toolkit.errors import ToolkitError


def find_tool(name: str, path: str | None = None) -> str | None:
    """Path of executable `name`; `path` replaces PATH and the sbin folders."""
    if path is None:
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return shutil.which(name, path=path)


def tool(name: str) -> str:
    """Path of executable `name`; raises ToolkitError if it is not installed."""
    found = find_tool(name)
    if found is None:
        raise ToolkitError(
            f"`{name}` is not installed on this machine",
            next_step="`toolkit cluster create` installs what the embedded cluster needs",
        )
    return found
