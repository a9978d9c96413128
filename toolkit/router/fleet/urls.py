"""Which URL can be an engine's: the same rules for the command line, a members file and a run's endpoints."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}

Identity = tuple[str, str | None, int | None, str]
"""What makes two URLs the same engine: scheme, host, port, path."""


def what_is_wrong(url: str) -> str:
    """Why `url` cannot be an engine's; empty if it can."""
    # Looked for first: urlsplit drops line breaks and tabs without a word.
    if any(character.isspace() or not character.isprintable() for character in url):
        return "has a blank, a line break or another character that no URL has"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "has no port between 1 and 65535 or no valid host"
    if "@" in parts.netloc:
        return "carries a credential; the engines' own key goes into --engine-key-file"
    if parts.scheme not in _DEFAULT_PORTS or not parts.netloc:
        return "does not begin with http:// or https:// and a host"
    if "?" in url or "#" in url:
        return "has a query or a fragment"
    if port == 0 or parts.netloc.endswith(":"):
        return "has no port between 1 and 65535"
    if not parts.path.isascii():
        return "has a path that is not percent-encoded"
    return "" if _is_host(parts) else "names no valid host"


def presentable(url: str) -> str:
    """The URL as an error may show it: a credential or a query may hold a secret."""
    without_user = re.sub(r"^(\w+://)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"[?#].*", "?***", without_user, flags=re.DOTALL)


def identity(url: str) -> Identity:
    """Equal for two spellings of one engine's URL (a good one)."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme], parts.path.rstrip("/")


def _is_host(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    if not parts.netloc.startswith("["):
        return re.fullmatch(r"[\w-]+(\.[\w-]+)*\.?", host) is not None and _is_encodable(host)
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False


def _is_encodable(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True
