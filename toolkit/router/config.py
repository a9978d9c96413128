"""What the router is started with: the first value in the flow, checked before anything listens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

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
            object.__setattr__(self, role, tuple(_engine_url(role, url) for url in urls))
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"Port {self.port} is not between 0 and 65535.")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise SettingsError(f"Router setting {name} must be positive, not {getattr(self, name)}.")


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


def _engine_url(role: str, url: str) -> str:
    """`http://host:port[/base]` without a trailing slash; the URL is shown in logs and by /health."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingsError(f"The {role} URL is not a URL with a numeric port.") from None
    if parts.username or parts.password:
        raise SettingsError(
            f"The {role} URL of {parts.hostname} carries a credential.",
            next_step="take it out of the URL; clients send their own Authorization header",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise SettingsError(
            f"The {role} URL {url!r} is not of the form http://host:port.",
            next_step="write it with its scheme and without a query",
        )
    if port == 0:
        raise SettingsError(f"The {role} URL {url!r} names port 0.")
    return url.rstrip("/")
