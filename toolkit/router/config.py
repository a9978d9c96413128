"""What the router is started with: the first value in the flow, checked before anything listens."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from toolkit.errors import SettingsError
from toolkit.router.fleet.urls import Identity, identity, presentable, what_is_wrong

PathChoice = Literal["auto", "prefill", "readback", "decode-local"]


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Settings of one router process. Times are seconds, sizes are bytes.

    Raises:
        SettingsError: a value cannot work; the message names it.
    """

    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    # A members file or a run's folder; its engines come and go, beside those above.
    members: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    tls_cert: Path | None = None
    tls_key: Path | None = None
    api_keys: Path | None = None
    engine_key_file: Path | None = None

    # auto: the path of a turn that what was measured says is the quickest.
    path: PathChoice = "auto"
    # So many new tokens may decode compute itself: of one turn, and of all turns on one engine at a time.
    decode_local_tokens: int = 512
    decode_local_pending_tokens: int = 2048
    # Where no prefill engine takes traffic, decode computes whole prompts: slower, and beside its streams.
    decode_alone: bool = True

    # Below decode's `decoder_kv_blocks_ttl` (480 s by default): a handle must never outlive its blocks.
    ttl_s: float = 450.0
    lease_secret_file: Path | None = None
    # So long leases are renewed; None: they end with ttl_s.
    lease_hold_s: float | None = None
    claim: bool = True
    max_conversations: int = 100_000
    max_map_bytes: int = 576 << 20
    # Where the map of conversations outlives a restart; None: nowhere.
    map_file: Path | None = None

    max_concurrent: int = 1024
    max_queue: int = 1024
    queue_timeout_s: float = 30.0
    max_connections: int = 16384
    max_body_bytes: int = 64 << 20
    header_timeout_s: float = 30.0
    # Longer than the idle time of common load balancers, so that they are the ones to close.
    keepalive_s: float = 75.0
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
        self._check_engines()
        self._check_listening()
        if self.path not in get_args(PathChoice):
            raise SettingsError(
                f"--path {self.path!r} is not a path.",
                next_step=f"give one of {', '.join(get_args(PathChoice))}",
            )
        for name in _POSITIVE:
            _check_number(_flag(name), getattr(self, name), least=None)
        for name in _FROM_ZERO:
            _check_number(_flag(name), getattr(self, name), least=0)
        self._check_hold()
        self._check_files()

    def _check_engines(self) -> None:
        for role, urls, example in (
            ("prefill", self.prefill, "http://10.0.0.1:8100"),
            ("decode", self.decode, "http://10.0.0.2:8200"),
        ):
            if not urls and self.members is None:
                raise SettingsError(
                    f"The router has no {role} engine.",
                    next_step=f"give at least one --{role} URL, for example --{role} {example}, "
                    "or a file of engines with --members",
                )
            object.__setattr__(self, role, tuple(_engine_url(f"--{role}", url) for url in urls))
        _refuse_repeats(
            [("--prefill", url) for url in self.prefill] + [("--decode", url) for url in self.decode]
        )

    def _check_listening(self) -> None:
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
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("--tls-cert", "--tls-key") if self.tls_cert else ("--tls-key", "--tls-cert")
            raise SettingsError(f"{given} is given without {missing}.", next_step="give both, or neither")
        if self.engine_key_file is not None and self.api_keys is None:
            raise SettingsError(
                "--engine-key-file without --api-keys would let every client use the engines' key.",
                next_step="give the clients keys of their own with --api-keys, or leave it out: "
                "clients then send the engines' key themselves",
            )

    def _check_hold(self) -> None:
        if self.lease_hold_s is None:
            return
        _check_number("--lease-hold", self.lease_hold_s, least=None)
        if self.lease_hold_s <= self.ttl_s:
            raise SettingsError(
                f"--lease-hold {self.lease_hold_s:g} is not above --ttl {self.ttl_s:g}: "
                "no lease would live longer by it.",
                next_step="give --lease-hold more seconds than --ttl, or leave it out",
            )

    def _check_files(self) -> None:
        """What the router writes is nothing else's file."""
        files = {name: getattr(self, name) for name in _FILES}
        resolved = {name: file.resolve() for name, file in files.items() if file is not None}
        for written in ("access_log", "map_file"):
            for name, file in resolved.items():
                if name != written and file == resolved.get(written):
                    raise SettingsError(
                        f"{_flag(name)} {files[name]} is the file of {_flag(written)} too.",
                        next_step=f"give {_flag(written)} a file of its own",
                    )


_MOST = 10**15
_FILES = (
    "members",
    "tls_cert",
    "tls_key",
    "api_keys",
    "engine_key_file",
    "lease_secret_file",
    "map_file",
    "access_log",
)
_POSITIVE = (
    "ttl_s",
    "max_conversations",
    "max_map_bytes",
    "max_concurrent",
    "queue_timeout_s",
    "max_connections",
    "max_body_bytes",
    "header_timeout_s",
    "keepalive_s",
    "connect_timeout_s",
    "prefill_timeout_s",
    "stall_timeout_s",
    "answer_timeout_s",
    "health_interval_s",
    "health_timeout_s",
    "eject_after",
    "drain_timeout_s",
)
_FROM_ZERO = ("decode_local_tokens", "decode_local_pending_tokens", "max_queue")
# Those that the command line has; the others are told by their names here.
_ON_COMMAND_LINE = {
    "ttl_s",
    "decode_local_tokens",
    "decode_local_pending_tokens",
    "max_concurrent",
    "max_queue",
    "queue_timeout_s",
    "max_connections",
    "header_timeout_s",
    "keepalive_s",
    "prefill_timeout_s",
    "stall_timeout_s",
    "answer_timeout_s",
    "health_interval_s",
    "eject_after",
    "drain_timeout_s",
    *_FILES,
}


def _flag(name: str) -> str:
    if name not in _ON_COMMAND_LINE:
        return f"Router setting {name}"
    return "--" + name.removesuffix("_s").replace("_", "-")


def _check_number(what: str, value: float, *, least: int | None) -> None:
    """`least` None: anything above 0."""
    # Not-a-number is neither above nor below anything, so a plain comparison would let it pass.
    if not (value > 0 if least is None else value >= least) or value == math.inf:
        wanted = "a finite number above 0" if least is None else f"a finite number of at least {least}"
    elif value > _MOST:
        wanted = f"at most {_MOST:,}"
    else:
        return
    raise SettingsError(
        f"{what} must be {wanted}, not {_shown(value)}.",
        next_step=f"give {what} such a number, or leave it out for its default",
    )


def _shown(value: float) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _engine_url(flag: str, url: str) -> str:
    """`http://host:port[/base]` without a trailing slash; the URL is shown in logs and by /health."""
    wrong = what_is_wrong(url)
    if wrong:
        raise SettingsError(
            f"{flag} {presentable(url)!r} {wrong}.", next_step=f"write it as {flag} http://HOST:PORT"
        )
    return url.rstrip("/")


def _refuse_repeats(given: list[tuple[str, str]]) -> None:
    """An engine has one role, and counts once in it: neither load nor health could be told otherwise."""
    seen: dict[Identity, str] = {}
    for flag, url in given:
        engine = identity(url)
        if engine in seen:
            again = "twice" if seen[engine] == flag else f"to {seen[engine]} too"
            raise SettingsError(
                f"{flag} {url!r} is given {again}.",
                next_step=f"give each engine once, to --prefill or to --decode; take one {url} out",
            )
        seen[engine] = flag
