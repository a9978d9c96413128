"""Folders that a volume may be mounted at on nodes: none that hides what the node's own disk holds."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BeforeValidator

# ParallelCluster accepts a mount over nearly each of these, and below all. /opt holds Slurm, EFA and the
# engine's environment; at /scratch a node's own disks are mounted.
TAKEN = (
    *("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "lost+found", "opt", "proc"),
    *("root", "run", "sbin", "scratch", "snap", "sys", "tmp", "usr", "var"),
)
# What /proc/mounts shows as it is; it writes a blank as \040.
PLAIN = re.compile(r"(/[A-Za-z0-9._-]+)+/?")


def why_no_mount(folder: str, *, of_a_disk: bool = False) -> str | None:
    """Why nothing may be mounted at `folder`; None if something may. `of_a_disk`: one of the node's own."""
    if folder.startswith("/") and not folder.strip("/"):
        return "/ is the node's own disk"
    if not PLAIN.fullmatch(folder):
        return "must be an absolute folder, such as /fsx, of letters, digits and . _ - only"
    parts = PurePosixPath(folder).parts[1:]
    if {".", ".."} & set(folder.split("/")):
        return "must be a folder's own path, such as /fsx, without . and .."
    if parts[0] in TAKEN and not (of_a_disk and parts[0] == "scratch"):
        return f"/{parts[0]} and what lies below is the node's own: choose another folder, such as /fsx"
    return None


def _a_folder_of_its_own(value: Any) -> Any:
    """Before `Path`, which takes away what a mount point must not have, such as `//` and `.`."""
    if isinstance(value, str | Path) and (reason := why_no_mount(str(value))):
        raise ValueError(reason)
    return value


Mount = Annotated[Path, BeforeValidator(_a_folder_of_its_own)]
