"""One file of a sweep's folder: read whole, or an error that names it and says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError

SWEEP_AGAIN = "the file is damaged: run the sweep again under another --name"


def read_text(path: Path, *, failure: type[ToolkitError] = ToolkitError) -> str:
    """`failure`: raised if what is there cannot be read as UTF-8; a missing file raises ToolkitError."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise failure(
            f"{path} is not UTF-8: {error.reason} at byte {error.start}", next_step=SWEEP_AGAIN
        ) from error


def read_bytes(path: Path) -> bytes:
    """Raises ToolkitError naming a file that is missing or cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ToolkitError(
            f"{path} is missing",
            next_step="check that the folder is a sweep's; `toolkit sweep run` makes one and "
            "`toolkit sweep resume` completes it",
        ) from error
    except OSError as error:
        raise ToolkitError(
            f"{path} cannot be read: {error.strerror or error}",
            next_step="put the sweep's own file back there",
        ) from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object whose every value can be written again: NaN and half characters are refused."""
    try:
        data = json.loads(read_text(path))
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"{path} is not JSON: {error}", next_step=SWEEP_AGAIN) from error
    if not isinstance(data, dict):
        raise ToolkitError(f"{path} holds no JSON object", next_step=SWEEP_AGAIN)
    return data
