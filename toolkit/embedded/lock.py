"""One command at a time changes an embedded cluster."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.errors import ToolkitError


@contextmanager
def cluster_lock(root: Path) -> Iterator[None]:
    """Holds <root>/lock; raises ToolkitError at once if another process does.

    The kernel frees it when this process ends, however it ends.
    """
    path = root / "lock"
    descriptor = _take(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        # Gone with its last file: a cluster that was deleted leaves no empty folder.
        if root.is_dir() and not any(root.iterdir()):
            root.rmdir()
        os.close(descriptor)


def _take(path: Path) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ToolkitError(
                f"cannot write the embedded cluster's folder: {error.filename}: {error.strerror}",
                next_step="set target.root to a folder of yours, or run as the user who made it",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise ToolkitError(
                f"another command (process {holder}) is changing the embedded cluster in {path.parent}",
                next_step="wait until it has ended, then run this one again",
            ) from None
        if os.fstat(descriptor).st_nlink:
            return descriptor
        # The holder before us removed the file between our open and our lock.
        os.close(descriptor)
