"""Reading files whose names users give: only regular ones, since others may keep the event loop waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple


class Content(NamedTuple):
    """`mode`: the file's rights."""

    data: bytes
    mode: int


def read_regular(path: Path, most: int = -1) -> Content:
    """The content of a file, or its first `most` bytes.

    Raises:
        OSError: it cannot be opened or read, or is a pipe, socket, device or folder.
    """
    # A pipe without a writer is opened at once this way; of a regular file it changes nothing.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(opened).st_mode
    if not stat.S_ISREG(mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with os.fdopen(opened, "rb") as file:
        return Content(file.read(most), stat.S_IMODE(mode))
