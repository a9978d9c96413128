"""The map of conversations kept across a restart of the router: one SQLite file, written behind by a thread.

It also holds the secret that tenants are told apart with: with another one nothing in it would be found.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import SettingsError
from toolkit.router.memory.conversation import END_BYTES, ID_BYTES, MOST_ENDS
from toolkit.router.memory.conversations import Conversations
from toolkit.router.memory.handle import Handle
from toolkit.router.memory.records import Entry, Held, Journal, Released
from toolkit.router.memory.unwritten import Unwritten
from toolkit.router.request.identity import KEY_BYTES, TENANT_BYTES

FORMAT = 2
SECRET_BYTES = 32

_MAGIC = b"SQLite format 3\0"
_APPLICATION = 0x50444D50
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE conversations (
    key BLOB NOT NULL UNIQUE, ids BLOB NOT NULL, named INTEGER NOT NULL, ends BLOB NOT NULL,
    leg TEXT NOT NULL, shape BLOB, data BLOB, tokens INTEGER NOT NULL, history_bytes INTEGER NOT NULL,
    saved_at REAL NOT NULL, used_at REAL NOT NULL, prompt_tokens INTEGER
);
"""
_SAVE = "INSERT OR REPLACE INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_HANDLE_LEFT = "UPDATE conversations SET shape = NULL, data = NULL WHERE key = ?"
_IN_ORDER = "SELECT rowid FROM conversations ORDER BY used_at"
_READ = "SELECT * FROM conversations WHERE rowid = ?"
_Bytes, _Number = bytes | None, int | None
_ROW = (bytes, bytes, int, bytes, str, _Bytes, _Bytes, int, int, float, float, _Number)
_REMOVE = "DELETE FROM conversations WHERE key = ?"
_REMOVE_OLD = "DELETE FROM conversations WHERE used_at <= ?"
_DROP_LEG = "DELETE FROM conversations WHERE leg = ?"

_BATCH = 4096
_BATCH_SECONDS = 1.0
_MOST_WAITING = 8192
_LOCK_SECONDS = 2.0
_CLOSE_SECONDS = 10
_MOST_NUMBER = (1 << 63) - 1
"""That SQLite keeps."""

_log = logging.getLogger("toolkit.router")


class MapFile(Journal):
    """The file, this process's alone while it is open. Ages in it are of the wall clock.

    What happened in the last second before a SIGKILL may be lost. That is safe: of the handles only those
    come back whose holder is asked before every read.

    Attributes:
        lost: changes that were not written because the disk did not keep up.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        secret: bytes,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.path = path
        self.secret = secret
        self.lost = 0
        self._connection = connection
        self._clock = clock
        self._wall = wall
        # What the event loop adds to, under a lock that is never held while the disk works; what is being
        # written.
        self._changing = threading.Lock()
        self._waiting = Unwritten()
        self._batch = Unwritten()
        self._failing = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_behind, name="map-file", daemon=True)
        self._writer.start()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> MapFile:
        """Opens the file, or makes it (mode 0600). `clock` is the map's.

        Raises:
            SettingsError: it cannot be made or read, others may read it, another process has it, or it is not
                a file of this kind and format. Then it is left as it is.
        """
        _claim(path)
        with _as_settings_error(path):
            connection = sqlite3.connect(
                path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                _check_kind(path, connection)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                secret = _secret(path, connection)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, secret, clock, wall)

    @property
    def waiting(self) -> int:
        """Changes that are not in the file yet."""
        return len(self._waiting) + len(self._batch)

    def restore(self, conversations: Conversations) -> list[Released]:
        """Puts what the file holds into an empty map; what is too old leaves the file.

        Raises:
            SettingsError: the file is damaged.
        """
        with _as_settings_error(self.path):
            with self._lock:
                self._connection.execute(_REMOVE_OLD, (self._wall() - conversations.ttl_s,))
            return conversations.restore(self._entries())

    def close(self) -> None:
        """Writes what waits, then closes the file; gives up on a disk that does not answer."""
        self._closing.set()
        self._wake.set()
        self._writer.join(_CLOSE_SECONDS)
        if self._writer.is_alive():
            _log.error("%s: not closed, a write has been waiting for %d s", self.path, _CLOSE_SECONDS)
        else:
            self._connection.close()

    def saved(self, entry: Entry) -> None:
        with self._changing:
            if self._has_room(entry.key):
                self._waiting.saved(entry)

    def handle_left(self, key: bytes) -> None:
        with self._changing:
            if self._has_room(key):
                self._waiting.handle_left(key)

    def removed(self, key: bytes) -> None:
        with self._changing:
            if self._has_room(key):
                self._waiting.removed(key)

    def leg_dropped(self, leg: str) -> None:
        with self._changing:
            self._waiting.leg_dropped(leg)

    def _has_room(self, key: bytes) -> bool:
        """Whether the change of one more conversation may wait."""
        rows, taken = self._waiting.rows, self._waiting.taken
        waiting = len(rows) + len(taken)
        if waiting >= _MOST_WAITING and key not in rows:
            self.lost += 1
            return False
        if waiting == _BATCH:
            self._wake.set()
        return True

    def _write_behind(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(_BATCH_SECONDS)
            self._wake.clear()
            self._write()
        while self.waiting and self._write():
            pass
        if self.waiting:
            _log.error("%s: %d changes of the map were not written", self.path, self.waiting)

    def _write(self) -> bool:
        """What waits, in one transaction. False: it failed, and is tried again with the next."""
        if len(self._batch) < _MOST_WAITING:
            with self._changing:
                later, self._waiting = self._waiting, Unwritten()
            self._batch.then(later)
        if not self._batch:
            return True
        try:
            with self._lock:
                self._write_batch(self._batch)
        except sqlite3.Error as error:
            if not self._failing:
                _log.error("%s: the map is not being written: %s", self.path, error)
            self._failing = True
            return False
        if self._failing:
            _log.warning("%s: the map is being written again; %d changes were lost", self.path, self.lost)
        self._failing = False
        self._batch = Unwritten()
        return True

    def _write_batch(self, batch: Unwritten) -> None:
        ahead = self._wall() - self._clock()
        rows, taken, many = batch.rows, batch.taken, self._connection.executemany
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            many(_DROP_LEG, ((leg,) for leg in batch.legs))
            many(_REMOVE, ((key,) for key, entry in rows.items() if entry is None))
            many(_SAVE, (_row(entry, ahead, taken) for entry in rows.values() if entry is not None))
            many(_HANDLE_LEFT, ((key,) for key in taken.difference(rows)))
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _entries(self) -> Iterator[Entry]:
        ahead = self._wall() - self._clock()
        # Without the blobs this sorts in a few megabytes.
        with self._lock:
            numbers = self._connection.execute(_IN_ORDER).fetchall()
        for number in numbers:
            with self._lock:
                row = self._connection.execute(_READ, number).fetchone()
            yield _entry(row, ahead, self._clock())


def _row(entry: Entry, ahead: float, taken: Set[bytes]) -> tuple[Any, ...]:
    held = entry.held
    shape, data = None, None
    if held.handle is not None and entry.key not in taken:
        shape, data = held.handle.stored()
    return (
        entry.key,
        entry.ids,
        entry.named,
        entry.ends,
        held.leg,
        shape,
        data,
        min(held.tokens, _MOST_NUMBER),
        held.history_bytes,
        held.saved_at + ahead,
        held.used_at + ahead,
        None if held.prompt_tokens is None else min(held.prompt_tokens, _MOST_NUMBER),
    )


def _entry(row: tuple[Any, ...], ahead: float, now: float) -> Entry:
    """Raises ValueError for a row that no router wrote."""
    if not all(map(isinstance, row, _ROW)):
        raise ValueError("a conversation's row has values of other types")
    key, ids, named, ends, leg, shape, data, tokens, history_bytes, saved_at, used_at, prompt = row
    turns = (len(ids) - TENANT_BYTES) // ID_BYTES
    whole = len(key) == KEY_BYTES and turns in range(1, MOST_ENDS + 1) and len(ids) % ID_BYTES == 0
    # Of an unnamed text each turn has an end, of unnamed messages none.
    ended = range(MOST_ENDS + 1) if named else (0, turns)
    if not whole or divmod(len(ends), END_BYTES) not in [(count, 0) for count in ended]:
        raise ValueError("a conversation's keys are not whole")
    if named and ids != key:
        raise ValueError("a conversation's name is not its key")
    handle = None if shape is None else Handle.restored(shape, data)
    if handle is not None and not (handle.proven and handle.lease):
        # Whether it was read since the last write is not known, and nobody would find out.
        handle = None
    # A clock that was set back makes nothing younger than new.
    saved, used = min(saved_at - ahead, now), min(used_at - ahead, now)
    held = Held(leg, handle, tokens, history_bytes, saved, used, prompt)
    return Entry(key, ids, bool(named), ends, held)


def _claim(path: Path) -> None:
    """Makes the file for its owner alone, or sees that it is so and that it may be a database."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        _check_file(path)
    except OSError as error:
        raise SettingsError(
            f"The map's file {path} cannot be made: {error.strerror}.",
            next_step="Name a file in a folder that exists and that the router may write.",
        ) from None


def _check_file(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        raise SettingsError(f"The map's file {path} is not a regular file.", next_step="Name another file.")
    try:
        with path.open("rb") as file:
            beginning = file.read(len(_MAGIC))
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from None
    if beginning not in (b"", _MAGIC):
        # SQLite takes what is shorter for an empty file.
        raise _refused(path, "is not a database")
    if mode & 0o077:
        raise SettingsError(
            f"The map's file {path} holds a secret and is open to others (mode {stat.S_IMODE(mode):04o}).",
            next_step=f"chmod 600 {path}",
        )


def _check_kind(path: Path, connection: sqlite3.Connection) -> None:
    """Makes the tables in a file that is empty; refuses one that is not ours before anything is written."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and tables == 0:
        rows = [("format", FORMAT), ("secret", secrets.token_bytes(SECRET_BYTES))]
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA}")
        connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        connection.execute("COMMIT")
        return
    if application != _APPLICATION:
        raise _refused(path, "is a database of something else")
    found = connection.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
    if found != (FORMAT,):
        written = "no format" if found is None else f"format {found[0]!r}"
        raise _refused(path, f"has {written}, this version reads {FORMAT}")


def _secret(path: Path, connection: sqlite3.Connection) -> bytes:
    found = connection.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
    if found is None or not isinstance(found[0], bytes) or len(found[0]) != SECRET_BYTES:
        raise _refused(path, "is damaged: it has no secret")
    return found[0]


def _refused(path: Path, what: str) -> SettingsError:
    return SettingsError(
        f"The map's file {path} {what}.",
        next_step="Move it away, or name another; the router then begins with an empty map.",
    )


@contextmanager
def _as_settings_error(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise SettingsError(
                f"The map's file {path} is in use by another router.",
                next_step="Give each router its own file, or wait until the other has ended.",
            ) from None
        raise _refused(path, f"cannot be read: {error}") from None
    except (TypeError, ValueError) as error:
        raise _refused(path, f"is damaged: {error}") from None
