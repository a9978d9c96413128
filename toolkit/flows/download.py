"""A folder of the cluster, such as a run's or a sweep's, fetched to this machine.

Files that are here already, of the same size and time, are not fetched again: a download that was cut off
goes on when it is asked for once more, and one of a run that goes on fetches what has changed.
"""

from __future__ import annotations

import base64
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
# In base64, since a name may hold any byte but / and 0, and a command's output is read as text. The slash
# follows a link to a folder.
LISTING = r"""set -o pipefail; find "$1/" -type f -printf '%s %T@ %P\0' | base64 --wrap=0"""


@dataclass(frozen=True)
class RemoteFile:
    """`path`: below the folder; `modified`: nanoseconds since 1970."""

    path: PurePosixPath
    size: int
    modified: int


@dataclass(frozen=True)
class Listing:
    """`left_out`: a line for each file that can't be fetched, with why."""

    files: list[RemoteFile]
    left_out: list[str]


def download(head: Head, folder: PurePosixPath, to: Path, tell: Progress) -> Path:
    """Fetches `folder` into `to`, which is returned. Raises ToolkitError for a folder that is not there or a
    disk that can't be written; and, when all others are fetched, for files that could not be, with each."""
    listing = _listing(head, folder)
    if to.resolve() == Path(folder) and to.exists():
        raise SettingsError(f"{to} is that very folder.", next_step="give another --to")
    missing = [file for file in listing.files if not _is_here(file, to)]
    total = sum(file.size for file in missing)
    tell(f"fetching {len(missing)} of {len(listing.files)} files, {total / 1e6:.1f} MB, into {to}")
    left_out = list(listing.left_out)
    for file in missing:
        try:
            _fetch(head, folder / file.path, file, to / file.path)
        except OSError as error:
            raise ToolkitError(
                f"can't write {to / file.path}: {error.strerror}.",
                next_step="free space or give another folder with --to; what is there is not fetched again",
            ) from error
        except ToolkitError as error:
            head.run(["true"], repeat=True)  # raises if it is the head node that can't be reached
            left_out.append(f"{file.path}: {error.what}")
            tell(f"not fetched: {left_out[-1]}")
    if left_out:
        raise ToolkitError(
            f"{len(left_out)} of the files in {folder} were not fetched:\n"
            + "\n".join(f"  {line}" for line in left_out),
            next_step=f"the others are in {to}; the same command tries these again",
        )
    return to


def _listing(head: Head, folder: PurePosixPath) -> Listing:
    done = head.run(["bash", "-c", LISTING, "bash", str(folder)], timeout=LISTING_SECONDS, repeat=True)
    entries = base64.b64decode(done.stdout).split(b"\0")[:-1]
    if done.returncode != 0 and not entries:
        raise ToolkitError(
            f"can't list {folder}: {done.stderr.strip()[-300:]}",
            next_step="`toolkit job list --all -f FILE` names the runs",
        )
    # A folder in it that can't be read, or a file that went while they were listed.
    left_out = done.stderr.strip().splitlines() if done.returncode != 0 else []
    files = []
    for entry in entries:
        size, modified, name = entry.split(b" ", 2)
        try:
            path = PurePosixPath(name.decode())
        except UnicodeDecodeError:
            left_out.append(f"{os.fsdecode(name)!a}: its name is not in UTF-8; rename it on the cluster")
            continue
        if path.name != LOCK:
            files.append(RemoteFile(path, int(size), _nanoseconds(modified.decode())))
    return Listing(sorted(files, key=lambda file: str(file.path)), left_out)


def _nanoseconds(seconds: str) -> int:
    """Ten digits follow find's point, of which the last is always 0."""
    whole, _, fraction = seconds.partition(".")
    return int(whole) * 10**9 + int(fraction[:9].ljust(9, "0"))


def _is_here(file: RemoteFile, to: Path) -> bool:
    here = to / file.path
    if not here.is_file():
        return False
    status = here.stat()
    return (status.st_size, status.st_mtime_ns) == (file.size, file.modified)


def _fetch(head: Head, path: PurePosixPath, file: RemoteFile, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    new, name = tempfile.mkstemp(dir=to.parent, prefix=".fetched.")
    os.close(new)
    try:
        _fetch_whole(head, path, file.size, Path(name))
        Path(name).chmod(0o644)
        os.utime(name, ns=(file.modified, file.modified))
        Path(name).replace(to)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _fetch_whole(head: Head, path: PurePosixPath, size: int, to: Path) -> None:
    """`size`: as it was listed. A file that is shorter afterwards was written anew meanwhile, and what was
    fetched may be of both: it is fetched once more."""
    for _ in range(2):
        with to.open("wb") as written:
            for piece in _pieces(head, path, size):
                written.write(piece)
            got = written.tell()
        now = head.size(path)
        if now is None:
            raise _gone(path)
        if got == size and now >= size:
            return
        size = now
    raise ToolkitError(f"it got shorter while it was fetched, twice; it has {size} bytes now.")


def _pieces(head: Head, path: PurePosixPath, size: int) -> Iterator[bytes]:
    """As many bytes as the file had when it was listed; a log that grows meanwhile is fetched up to there."""
    for start in range(0, size, PIECE_BYTES):
        text = head.get(path, start=start, limit=min(PIECE_BYTES, size - start))
        if text is None:
            raise _gone(path)
        yield text.encode("utf-8", "surrogateescape")


def _gone(path: PurePosixPath) -> ToolkitError:
    return ToolkitError(f"{path} was there, and is no longer.")
