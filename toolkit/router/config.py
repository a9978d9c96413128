"""What the router is started with: the first value in the flow, checked before anything listens."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from toolkit.errors import SettingsError


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Settings of one router process. Times are seconds, sizes are bytes.

    Raises:
        SettingsError: a value cannot work; the message names it.
    """

    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    # Below decode's `decoder_kv_blocks_ttl` (480 s by default): a handle must never outlive its blocks.
    ttl_s: float = 450.0
    max_conversations: int = 100_000
    max_map_bytes: int = 256 << 20
    max_body_bytes: int = 64 << 20
    connect_timeout_s: float = 5.0
    prefill_timeout_s: float = 600.0
    # Longest silence allowed to a streaming engine, and longest refusal to read allowed to a client.
    stall_timeout_s: float = 300.0
    # A whole (not streamed) answer is silent until it is finished.
    answer_timeout_s: float = 3600.0
    health_interval_s: float = 2.0
    health_timeout_s: float = 5.0
    eject_after: int = 2
    drain_timeout_s: float = 60.0
    # None: standard error.
    access_log: Path | None = None

    def __post_init__(self) -> None:
        for role, urls in (("prefill", self.prefill), ("decode", self.decode)):
            if not urls:
                raise SettingsError(
                    f"The router has no {role} engine.",
                    next_step=f"give at least one --{role} URL, for example --{role} http://10.0.0.1:8100",
                )
            object.__setattr__(self, role, tuple(_engine_url(f"--{role}", url) for url in urls))
        _refuse_repeats(
            [("--prefill", url) for url in self.prefill] + [("--decode", url) for url in self.decode]
        )
        if not re.fullmatch(r"[\w.:%-]+", self.host):
            raise SettingsError(
                f"--host {self.host!r} is not an address to listen on.",
                next_step="give --host 127.0.0.1 for this machine only, or --host 0.0.0.0 for every network",
            )
        if not 0 <= self.port <= 65535:
            raise SettingsError(
                f"--port {self.port} is not between 0 and 65535.",
                next_step="give --port 8000, or --port 0 for a free one",
            )
        for name in _POSITIVE:
            _check_positive(_FLAGS.get(name, f"Router setting {name}"), getattr(self, name))


_POSITIVE = (
    "ttl_s",
    "max_conversations",
    "max_map_bytes",
    "max_body_bytes",
    "connect_timeout_s",
    "prefill_timeout_s",
    "stall_timeout_s",
    "answer_timeout_s",
    "health_interval_s",
    "health_timeout_s",
    "eject_after",
    "drain_timeout_s",
)
_FLAGS = {"ttl_s": "--ttl"}
_DEFAULT_PORTS = {"http": 80, "https": 443}


def _check_positive(what: str, value: float) -> None:
    # Not-a-number is neither above nor below anything, so a plain comparison would let it pass.
    if not (math.isfinite(value) and value > 0):
        raise SettingsError(
            f"{what} must be a finite number above 0, not {value}.",
            next_step=f"give {what} such a number, or leave it out for its default",
        )


def _engine_url(flag: str, url: str) -> str:
    """`http://host:port[/base]` without a trailing slash; the URL is shown in logs and by /health."""
    wrong = _what_is_wrong(url)
    if wrong:
        raise SettingsError(
            f"{flag} {_presentable(url)!r} {wrong}.", next_step=f"write it as {flag} http://HOST:PORT"
        )
    return url.rstrip("/")


def _what_is_wrong(url: str) -> str:
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
        return "carries a credential; clients send their own Authorization header"
    if parts.scheme not in _DEFAULT_PORTS or not parts.netloc:
        return "does not begin with http:// or https:// and a host"
    if "?" in url or "#" in url:
        return "has a query or a fragment"
    if port == 0 or parts.netloc.endswith(":"):
        return "has no port between 1 and 65535"
    return "" if _is_host(parts) else "names no valid host"


def _is_host(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    if not parts.netloc.startswith("["):
        return re.fullmatch(r"[\w-]+(\.[\w-]+)*\.?", host) is not None
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False


def _presentable(url: str) -> str:
    """The URL as an error may show it: a credential or a query may hold a secret."""
    without_user = re.sub(r"^(\w+://)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"[?#].*", "?***", without_user, flags=re.DOTALL)


def _refuse_repeats(given: list[tuple[str, str]]) -> None:
    """An engine has one role, and counts once in it: neither load nor health could be told otherwise."""
    seen: dict[tuple[str | int | None, ...], str] = {}
    for flag, url in given:
        parts = urlsplit(url)
        engine = (parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme], parts.path)
        if engine in seen:
            again = "twice" if seen[engine] == flag else f"to {seen[engine]} too"
            raise SettingsError(
                f"{flag} {url!r} is given {again}.",
                next_step=f"give each engine once, to --prefill or to --decode; take one {url} out",
            )
        seen[engine] = flag
