"""A folder of the cluster, such as a run's or a sweep's, fetched to this machine.

Files that are here already, of the same size and time, are not fetched again: a download that was cut off
goes on when it is asked for once more, and one of a run that goes on fetches what has changed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.run import Progress
from toolkit.remote.head import Head

PIECE_BYTES = 16 * 1024 * 1024
LISTING_SECONDS = 300  # a shared volume that is busy takes its time
# Held on the cluster by whoever works there.
LOCK = ".lock"


@dataclass(frozen=True)
class RemoteFile:
    """`path`: below the folder; `modified`: nanoseconds since 1970."""

    path: PurePosixPath
    size: int
    modified: int


def download(head: Head, folder: PurePosixPath, to: Path, tell: Progress) -> Path:
    """Fetches `folder` into `to`, which is returned. Raises ToolkitError for a folder that is not there or a
    disk that can't be written."""
    files = _listing(head, folder)
    if to.resolve() == Path(folder) and to.exists():
        raise SettingsError(f"{to} is that very folder.", next_step="give another --to")
    missing = [file for file in files if not _is_here(file, to)]
    total = sum(file.size for file in missing)
    tell(f"fetching {len(missing)} of {len(files)} files, {total / 1e6:.1f} MB, into {to}")
    for file in missing:
        try:
            _fetch(head, folder / file.path, file, to / file.path)
        except OSError as error:
            raise ToolkitError(
                f"can't write {to / file.path}: {error.strerror}.",
                next_step="free space or give another folder with --to; what is there is not fetched again",
            ) from error
    return to


def _listing(head: Head, folder: PurePosixPath) -> list[RemoteFile]:
    # The slash follows a link to a folder; find says nothing else on stdout.
    argv = ["find", f"{folder}/", "-type", "f", "-printf", r"%s %T@ %P\0"]
    done = head.run(argv, timeout=LISTING_SECONDS, repeat=True)
    if done.returncode != 0:
        raise ToolkitError(
            f"can't list {folder}: {done.stderr.strip()[-300:]}",
            next_step="`toolkit job list --all -f FILE` names the runs",
        )
    files = []
    for entry in done.stdout.split("\0")[:-1]:
        size, modified, path = entry.split(" ", 2)
        seconds, _, fraction = modified.partition(".")
        # Ten digits follow the point, of which the last is always 0.
        nanoseconds = int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))
        files.append(RemoteFile(PurePosixPath(path), int(size), nanoseconds))
    return sorted((file for file in files if file.path.name != LOCK), key=lambda file: str(file.path))


def _is_here(file: RemoteFile, to: Path) -> bool:
    here = to / file.path
    if not here.is_file():
        return False
    status = here.stat()
    return (status.st_size, status.st_mtime_ns) == (file.size, file.modified)


def _fetch(head: Head, path: PurePosixPath, file: RemoteFile, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    new, name = tempfile.mkstemp(dir=to.parent, prefix=f".{to.name}.")
    try:
        with os.fdopen(new, "wb") as written:
            for piece in _pieces(head, path, file.size):
                written.write(piece)
        Path(name).chmod(0o644)
        os.utime(name, ns=(file.modified, file.modified))
        Path(name).replace(to)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _pieces(head: Head, path: PurePosixPath, size: int) -> Iterator[bytes]:
    """As many bytes as the file had when it was listed; a log that grows meanwhile is fetched up to there."""
    for start in range(0, size, PIECE_BYTES):
        text = head.get(path, start=start, limit=min(PIECE_BYTES, size - start))
        if text is None:
            raise ToolkitError(f"{path} was there, and is no longer.", next_step="ask for the download again")
        yield text.encode("utf-8", "surrogateescape")
