"""PURE: where an engine is reached."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
# What a path may hold as it is (RFC 3986), and the sign of what is already encoded.
_PATH_CHARACTERS = "/%:@!$&'()*+,;=-._~"


@dataclass(frozen=True, slots=True)
class Origin:
    """An engine's address.

    Attributes:
        scheme: http or https.
        host: a name or an address; IPv6 without brackets.
        base: what every path begins with; empty, or begins with a slash and does not end with one.
        host_header: what the Host header says.
    """

    scheme: str
    host: str
    port: int
    base: str
    host_header: bytes

    @classmethod
    def parse(cls, url: str) -> Origin:
        """From an engine's URL that the configuration has already checked.

        Raises:
            ValueError: it is not `http(s)://host[:port][/base]`.
        """
        parts = urlsplit(url)
        default = _DEFAULT_PORTS.get(parts.scheme)
        host = parts.hostname
        if default is None or not host:
            raise ValueError("an engine's URL is http://host:port or https://host:port")
        port = parts.port or default
        base = quote(parts.path.rstrip("/"), safe=_PATH_CHARACTERS)
        return cls(parts.scheme, host, port, base, _host_header(host, None if port == default else port))

    def __hash__(self) -> int:
        # Pools look it up for every request: the hash of a bytes object is kept, that of five members is not.
        return hash(self.host_header)


def _host_header(host: str, port: int | None) -> bytes:
    if ":" in host:
        # A zone (fe80::1%eth0) is for this machine's sockets only.
        shown = b"[%b]" % host.partition("%")[0].encode("ascii")
    else:
        shown = host.encode("ascii" if host.isascii() else "idna")
    return shown if port is None else b"%b:%d" % (shown, port)
