"""One line per request, key=value, on standard error or in a file that may be rotated under us.

Lines are gathered and written by a thread of its own twice a second, so that a slow disk or a full pipe
holds no request up. What an operator must see at once goes to the logger `toolkit.router` as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from time import localtime, strftime

from toolkit.errors import SettingsError
from toolkit.router.observe.record import RequestRecord

_log = logging.getLogger("toolkit.router")

FLUSH_S = 0.5
_LINE_BREAK = ord("\n")
# About 100 MB: more than that is dropped, and said, while nothing can be written.
MAX_WAITING_LINES = 200_000


class AccessLog:
    """Writes records. Bodies, credentials and handles never reach it: a record has no place for them.

    Its methods belong to one thread, that of the event loop where there is one.

    Raises:
        SettingsError: the file cannot be opened.
    """

    def __init__(self, path: Path | None, *, max_waiting_lines: int = MAX_WAITING_LINES) -> None:
        self._sink: _Sink = _StandardError() if path is None else _File(path)
        self._writer = ThreadPoolExecutor(1, "access-log")
        self._max_waiting_lines = max_waiting_lines
        self._waiting: list[str] = []
        self._writing: Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._dropped = 0
        self._stamp = _Stamp()
        self._alarm = _Alarm()

    def write(self, record: RequestRecord) -> None:
        """Takes an ended record. A running event loop flushes it within FLUSH_S; else call `flush`."""
        if len(self._waiting) >= self._max_waiting_lines:
            self._dropped += 1
        else:
            self._waiting.append(log_line(record, self._stamp.at(record.ended_at)))
            if record.failed:
                self._alarm.tell(record)
        if self._timer is None:
            self._flush_later()

    def flush(self) -> None:
        """Hands what is gathered to the writing thread, unless it is still busy with the last batch."""
        self._timer = None
        if self._writing is not None:
            if not self._writing.done():
                self._flush_later()
                return
            self._writing.result()
        if self._dropped:
            _log.error("%d lines of the access log were dropped: %s is slow", self._dropped, self._sink.name)
            self._dropped = 0
        if self._waiting:
            lines, self._waiting = self._waiting, []
            self._writing = self._writer.submit(self._sink.write, lines)

    def sync(self) -> None:
        """Blocks until everything taken so far is written."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.result()
        self.flush()
        if self._writing is not None:
            self._writing.result()

    def close(self) -> None:
        """Writes the rest. Nothing may be written afterwards."""
        self.sync()
        self._writer.shutdown()
        self._sink.close()

    def _flush_later(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._timer = loop.call_later(FLUSH_S, self.flush)


def log_line(record: RequestRecord, stamp: str) -> str:
    """The line of an ended record, with its line break. The conversation is a digest, never its name."""
    r = record
    level = "WARNING" if r.outcome != "ok" or r.failed else "INFO"
    # The phrase that published tooling looks for.
    phrase = "" if r.prefill_ms is None else f' msg="Prefill done in {r.prefill_ms:.1f}ms"'
    return (
        f"{stamp} {level} request_id={r.request_id} conversation={_or_dash(r.digest)} path={_or_dash(r.path)}"
        f" prefill_ms={_ms(r.prefill_ms)} ttft_ms={_ms(r.ttft_ms)} total_ms={r.total_ms:.1f}"
        f" status={_or_dash(r.status)} stream={'true' if r.stream else 'false'}"
        f" prompt_tokens={_or_dash(r.prompt_tokens)} kv_read_tokens={_or_dash(r.kv_read_tokens)}"
        f" prefill={_or_dash(r.prefill)} decode={_or_dash(r.decode)} bytes={r.sent_bytes}"
        f" saved={'true' if r.saved else 'false'} retries={r.retries} outcome={r.outcome}"
        f" failures={_quoted('; '.join(r.failures)) if r.failures else '-'}{phrase}"
        f" endpoint={_path(r.endpoint)} reason={_word(r.reason)} identity={r.identity}"
        f" held_tokens={_or_dash(r.held_tokens)} suffix_tokens={_or_dash(r.suffix_tokens)}"
        f" readback={r.readback} declined={_word(r.declined)} queue_ms={_ms(r.queue_ms)}"
        f" first_byte_ms={_since(r.started, r.first_byte_at)}"
        f" last_byte_ms={_since(r.started, r.last_byte_at)}"
        f" attempts={r.attempts} trace={_or_dash(r.trace)} key={_word(r.key_name)}\n"
    )


def _or_dash(value: str | int | None) -> str | int:
    return "-" if value is None else value


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _since(started: float, at: float | None) -> str:
    return "-" if at is None else f"{(at - started) * 1000:.1f}"


def _path(path: str | None) -> str:
    """A request's path has no blanks, but may have quotes."""
    return "-" if path is None else _quoted(path) if '"' in path else path


@lru_cache(1024)
def _word(text: str | None) -> str:
    """As it is where it is one plain word, else in double quotes: a name in a file may hold anything."""
    if text is None:
        return "-"
    return text if text.isascii() and text.replace("-", "").replace("_", "").isalnum() else _quoted(text)


def _quoted(text: str) -> str:
    # JSON's escapes, so that neither a line break nor a quote ends the value.
    return json.dumps(text)


class _Stamp:
    """Local time with milliseconds; formatting it anew is only needed once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def at(self, now: float) -> str:
        second = int(now)
        if second != self._second:
            self._second = second
            self._text = strftime("%Y-%m-%dT%H:%M:%S", localtime(second))
        return f"{self._text}.{int((now - second) * 1000):03d}"


class _Alarm:
    """Serious ends of requests on the logger, at most one line a second: a dead fleet fails every request."""

    def __init__(self) -> None:
        self._last = 0.0
        self._untold = 0

    def tell(self, record: RequestRecord) -> None:
        now = record.ended_at
        if now - self._last < 1:
            self._untold += 1
            return
        more = f" ({self._untold} more failed since the last such line)" if self._untold else ""
        why = "; ".join(record.failures) or "see its line in the access log"
        _log.warning(
            "request %s: %s, status %s: %s%s", record.request_id, record.outcome, record.status, why, more
        )
        self._last, self._untold = now, 0


class _Sink(ABC):
    """Where lines go. What cannot be written is lost, counted and told: the router must go on."""

    name: str

    def __init__(self) -> None:
        self._lost = 0
        self._torn = False

    def write(self, lines: list[str]) -> None:
        """Appends whole lines."""
        text = "".join(lines).encode("utf-8", "backslashreplace")
        rest = memoryview(b"\n" + text if self._torn else text)
        try:
            self._prepare()
            while rest:
                written = self._append(rest)
                self._torn = rest[written - 1] != _LINE_BREAK
                rest = rest[written:]
        except OSError as error:
            if not self._lost:
                _log.error("%s cannot be written, lines are lost: %s", self.name, error.strerror)
            self._lost += len(lines)
            return
        if self._lost:
            _log.error("%s is written again; %d lines were lost", self.name, self._lost)
            self._lost = 0

    def close(self) -> None:
        if self._lost:
            _log.error("%s: %d lines were lost", self.name, self._lost)

    @abstractmethod
    def _prepare(self) -> None:
        """Called before each batch."""

    @abstractmethod
    def _append(self, data: memoryview) -> int:
        """Writes some of it; how many bytes."""


class _StandardError(_Sink):
    name = "standard error"

    def _prepare(self) -> None:
        """It is always open."""

    def _append(self, data: memoryview) -> int:
        sys.stderr.write(str(data, "utf-8"))
        sys.stderr.flush()
        return len(data)


class _File(_Sink):
    """A file that is opened again when another one, or none, has its name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.name = f"the access log {path}"
        try:
            self._fd = self._open()
        except OSError as error:
            raise SettingsError(
                f"The access log {path} cannot be written: {error.strerror}.",
                next_step="name a file in a directory that exists and that you may write to",
            ) from error

    def close(self) -> None:
        super().close()
        os.close(self._fd)

    def _append(self, data: memoryview) -> int:
        return os.write(self._fd, data)

    def _open(self) -> int:
        # A pipe that nobody reads is an error at once this way, not a wait.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(self._path, flags, 0o666)
        os.set_blocking(fd, True)
        return fd

    def _prepare(self) -> None:
        ours = os.fstat(self._fd)
        try:
            named = self._path.stat()
        except FileNotFoundError:
            pass
        else:
            if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino):
                return
        fresh = self._open()
        os.close(self._fd)
        self._fd = fresh
        self._torn = False
