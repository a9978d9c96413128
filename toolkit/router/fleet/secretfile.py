"""Files that hold secrets: read only if nobody else may read them. No error shows their content."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import SettingsError
from toolkit.router.fleet.regular import read_regular

_MOST_BYTES = 1 << 20


def read_private(option: str, path: Path) -> str:
    """The text of a file that its owner, or its owner and group, alone may read.

    Raises:
        SettingsError: it is missing, unreadable, open to others, too large or no text. Names `option`.
    """
    try:
        raw, mode = read_regular(path, _MOST_BYTES + 1)
    except OSError as error:
        raise SettingsError(
            f"{option} {path}: it cannot be read: {error.strerror or error}.",
            next_step=f"give {option} a file that the router's user may read",
        ) from error
    if mode & 0o007:
        raise SettingsError(
            f"{option} {path}: every user of this machine has rights on it (mode {mode:04o}).",
            next_step=f"chmod 600 {path} (640 for a group); renew the secret if others may have read it",
        )
    if len(raw) > _MOST_BYTES:
        raise SettingsError(
            f"{option} {path}: it is larger than {_MOST_BYTES} bytes.",
            next_step=f"give {option} another file",
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        # Not chained: the error's text would show a byte of the file.
        raise SettingsError(
            f"{option} {path}: it is not UTF-8 text.", next_step="write it as plain text"
        ) from None


def read_secret(option: str, path: Path) -> bytes:
    """A file's one secret, without white space around it; it can go into an Authorization header.

    Raises:
        SettingsError: as `read_private`; or it is empty or holds what a header cannot carry.
    """
    secret = read_private(option, path).strip()
    if not secret:
        raise SettingsError(
            f"{option} {path}: it is empty.", next_step="write the secret into it, on one line"
        )
    if not is_word(secret):
        raise SettingsError(
            f"{option} {path}: it holds more than one word of visible ASCII characters.",
            next_step="write the secret alone into it, on one line",
        )
    return secret.encode("ascii")


def is_word(text: str) -> bool:
    """Whether a header can carry it as one credential: visible ASCII characters, no blank."""
    return bool(text) and all("!" <= character <= "~" for character in text)
