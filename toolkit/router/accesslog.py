"""One line per request, key=value, on standard error or in a file that may be rotated under us."""

from __future__ import annotations

import logging
from logging.handlers import WatchedFileHandler
from pathlib import Path

from toolkit.errors import SettingsError
from toolkit.router.record import RequestRecord


class AccessLog:
    """Writes records. Bodies, credentials and handles never reach it: a record has no place for them."""

    def __init__(self, path: Path | None) -> None:
        handler: logging.Handler
        try:
            handler = logging.StreamHandler() if path is None else WatchedFileHandler(path)
        except OSError as error:
            raise SettingsError(
                f"The access log {path} cannot be written: {error.strerror}.",
                next_step="name a file in a directory that exists and that you may write to",
            ) from error
        line = "%(asctime)s.%(msecs)03d %(levelname)s %(message)s"
        formatter = logging.Formatter(line, "%Y-%m-%dT%H:%M:%S")
        handler.setFormatter(formatter)
        # Not registered by name: two routers in one process must not share a handler.
        self._logger = logging.Logger("toolkit.router.access", logging.INFO)
        self._logger.addHandler(handler)
        self._handler = handler

    def write(self, record: RequestRecord) -> None:
        line = " ".join(f"{key}={'-' if value is None else value}" for key, value in record.fields().items())
        if record.prefill_ms is not None:
            # The phrase that published tooling looks for.
            line += f' msg="Prefill done in {record.prefill_ms:.1f}ms"'
        failed = record.status is not None and record.status >= 500
        self._logger.log(logging.WARNING if failed or record.outcome != "ok" else logging.INFO, line)

    def close(self) -> None:
        self._handler.close()
