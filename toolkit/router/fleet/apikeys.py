"""Who may use the router: a file of API keys."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import SettingsError
from toolkit.router.fleet.polling import WatchedFiles, stamp
from toolkit.router.fleet.secretfile import is_word, read_private, read_secret
from toolkit.router.wire.headers import Headers

OPTION = "--api-keys"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class ApiKeys(WatchedFiles):
    """The keys of a file: one a line, `name:key` or `key` alone; `#` begins a comment line.

    A name may have several keys, so that a key can be changed without a gap. Use `load` before `check`.

    Raises:
        SettingsError: from `load`, for a file that others may read, without keys, or with a wrong line.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"the API keys ({path})")
        self._path = path
        self._names: dict[bytes, str] = {}
        self._pepper = secrets.token_bytes(32)

    def check(self, headers: Headers) -> str | None:
        """The name of whoever sent `Authorization: Bearer KEY` or `X-Api-Key: KEY`; None for no valid key."""
        for given in _credentials(headers):
            # The search takes its time by the digest, of which a client can neither know nor choose a bit.
            name = self._names.get(self._digest(given))
            if name is not None:
                return name
        return None

    def _stamps(self) -> tuple[object, ...]:
        return (stamp(self._path),)

    def _take(self) -> None:
        names: dict[bytes, str] = {}
        first: dict[bytes, int] = {}
        for line, name, key in _lines(self._path):
            digest = self._digest(key.encode("ascii"))
            if digest in names:
                raise SettingsError(
                    f"{OPTION} {self._path}, line {line}: the key is that of line {first[digest]} too.",
                    next_step="give each key once",
                )
            names[digest] = name
            first[digest] = line
        if not names:
            raise SettingsError(
                f"{OPTION} {self._path}: it holds no key, so nobody could use the router.",
                next_step="write `name:key` lines into it, or start the router without it",
            )
        self._names = names

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=32, key=self._pepper).digest()


def engine_authorization(key_file: Path | None, *, clients_have_keys: bool) -> bytes | None:
    """The Authorization that engines get: of their own key; empty, none; None, what the client sent.

    Raises:
        SettingsError: the file cannot be used.
    """
    if key_file is not None:
        return b"Bearer " + read_secret("--engine-key-file", key_file)
    # The clients' keys are the router's, and no engine's business.
    return b"" if clients_have_keys else None


def _credentials(headers: Headers) -> Iterator[bytes]:
    authorization = headers.get(b"authorization")
    if authorization is not None:
        kind, _, given = authorization.partition(b" ")
        if kind.lower() == b"bearer":
            yield given.strip()
    key = headers.get(b"x-api-key")
    if key is not None:
        yield key.strip()


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, name and key of each; a key without a name gets its number."""
    count = 0
    for line, text in enumerate(read_private(OPTION, path).splitlines(), start=1):
        entry = text.strip()
        if not entry or entry.startswith("#"):
            continue
        count += 1
        name, colon, key = entry.partition(":")
        if not colon:
            name, key = f"key-{count}", entry
        name, key = name.strip(), key.strip()
        # The line itself is not shown: it may be a key.
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{OPTION} {path}, line {line}: what stands before the colon is not a name.",
                next_step="write `name:key`; a name has up to 64 letters, digits, '.', '_', '@' and '-'",
            )
        if not is_word(key):
            raise SettingsError(
                f"{OPTION} {path}, line {line}: the key is empty, or no word of visible ASCII characters.",
                next_step="write `name:key` or `key`, without blanks in the key",
            )
        yield line, name, key
