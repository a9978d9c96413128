"""What is read from files and read again when they change: looked at once a second, in the event loop."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from toolkit.errors import SettingsError

_log = logging.getLogger("toolkit.router")
_UNREAD = object()

Stamp = tuple[int, ...] | None
"""Equal as long as a file is unchanged; None where there is none."""


class Polled(Protocol):
    def poll(self) -> None:
        """Looks whether there is something to do. Quick; does not raise for what users may do wrong."""


class WatchedFiles(ABC):
    """The content of some files. A change that is wrong is told once and changes nothing.

    what: begins the log lines, such as "the members".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._seen: object = _UNREAD
        self._trouble = ""

    def load(self) -> None:
        """The first reading. Raises SettingsError."""
        seen = self._stamps()
        self._take()
        self._seen = seen

    def poll(self) -> None:
        """Reads again what has changed, or what could not be read last time."""
        # Taken before the reading, so that a change during it is seen the next time.
        seen = self._stamps()
        if seen == self._seen:
            return
        try:
            self._take()
        except SettingsError as error:
            self._seen = _UNREAD
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.error("%s stay as they were: %s", self._what, str(error).replace("\n", " "))
            return
        self._seen, self._trouble = seen, ""
        _log.warning("%s were read again", self._what)

    @abstractmethod
    def _stamps(self) -> tuple[object, ...]:
        """Equal as long as nothing has changed."""

    @abstractmethod
    def _take(self) -> None:
        """Reads the files, and only then puts their content in force. Raises SettingsError."""


def stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    # The change time is that of its rights too: a file whose rights were set right is read again.
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns


class Poller:
    """Polls its things every `interval_s` seconds, from `start` to `stop`."""

    def __init__(self, polled: Iterable[Polled], *, interval_s: float = 1.0) -> None:
        self._polled = tuple(polled)
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            for each in self._polled:
                try:
                    each.poll()
                except Exception:
                    # A fault of ours in one must not end the others.
                    _log.exception("%s failed", type(each).__name__)
