"""PURE: bytes from a client to its requests: llhttp parses, what it lets pass but is ambiguous is refused."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

import httptools

from toolkit.router.request.refusal import Refusal
from toolkit.router.wire.headers import Headers, RawHeaders

# llhttp cannot stop between two requests, so it is fed in strides: what waits for its turn stays bounded.
_STRIDE = 8192
MAX_WAITING = 4
_MAX_WAITING_BYTES = 1 << 20
_MAX_TARGET_BYTES = 8192
_MAX_FIELDS = 256
# Python refuses to read longer numbers as integers; nobody needs them.
_MAX_LENGTH_DIGITS = 19
# A chunked body may spend this many bytes for each byte of content (a size line and two line ends need 6).
_CHUNK_COST = 16
_KNOWN_CODINGS = frozenset({b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress"})
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")
_UPGRADE_FIELDS = frozenset({b"connection", b"upgrade", b"http2-settings"})


@dataclass(slots=True)
class Request:
    """One request, whole.

    Attributes:
        path: percent-encoded as sent, without the query.
        client: the peer's address, empty if unknown.
        keep_alive: the client takes another answer on this connection.
        http10: it speaks HTTP/1.0: no chunks.
    """

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    client: str = ""
    keep_alive: bool = True
    http10: bool = False


class _Stop(Exception):
    """Ends parsing from inside a callback; `RequestReader.refusal` says why."""


class RequestReader:
    """Reads the requests of one connection.

    Attributes:
        requests: whole ones that wait for their turn, at most a few more than MAX_WAITING.
        refusal: what is wrong with the bytes after them; nothing is read any more.
        last: no request follows the latest whole one.
        receiving, in_body: a request, its body, has come in part.
        received: bytes of it so far, about.
        expects: its client waits for a word before it sends the body.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_client",
        "_headers",
        "_host",
        "_http10",
        "_left",
        "_max_body_bytes",
        "_max_header_bytes",
        "_parser",
        "_raw",
        "_rest",
        "_size",
        "_target",
        "_upgrading",
        "expects",
        "in_body",
        "last",
        "received",
        "receiving",
        "refusal",
        "requests",
    )

    def __init__(self, max_body_bytes: int, max_header_bytes: int, client: str) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_header_bytes = max_header_bytes
        self._client = client
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._rest = b""
        # The one that was found valid last: a connection names the same in every request.
        self._host = b""
        self.requests: deque[Request] = deque()
        self.refusal: Refusal | None = None
        self.last = False
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._raw: RawHeaders = []
        self._headers: Headers | None = None
        self._http10 = self._chunked = self._upgrading = False
        self._body: list[bytes] = []
        self._left = self._size = 0
        self.receiving = self.in_body = self.expects = False
        self.received = 0

    def close(self) -> None:
        """Lets the parser go: it and the reader hold each other."""
        self._parser = None
        self.last = True

    @property
    def full(self) -> bool:
        """Enough requests wait: the connection should not be read for now."""
        return bool(self._rest) or self._enough()

    def _ended(self) -> bool:
        """Nothing is read any more. What llhttp calls may have ended it."""
        return self.last or self.refusal is not None

    def _enough(self) -> bool:
        waiting = self.requests
        return len(waiting) >= MAX_WAITING or sum(len(one.body) for one in waiting) > _MAX_WAITING_BYTES

    def feed(self, data: bytes) -> None:
        """Takes bytes in; empty ones go on with what was left over while too many requests waited."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        if len(data) <= _STRIDE and not self.requests:
            self._parse(data)
            return
        view = memoryview(data)
        position = 0
        while position < len(data) and not self._ended():
            if self._enough():
                self._rest = data[position:]
                return
            step = self._left or _STRIDE
            self._parse(view[position : position + step])
            position += step

    def _parse(self, data: bytes | memoryview) -> None:
        if self._parser is None or self._ended():
            return
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.refusal is None:
                self._ignore_upgrade(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserError as error:
            # What follows a request that was to be the last is nobody's.
            if self._ended():
                return
            if isinstance(error, httptools.HttpParserCallbackError):
                raise  # a fault of ours
            self.refusal = Refusal(400, f"The request is not valid HTTP/1.1: {error}.")
        else:
            self._check_size()

    def _check_size(self) -> None:
        if not self.in_body:
            if self.received > self._max_header_bytes and self.receiving:
                self.refusal = self._too_many_headers()
        elif self._chunked and self.received > 2 * self._max_header_bytes + _CHUNK_COST * self._size:
            self.refusal = Refusal(400, "The request's chunks are mostly framing: send larger ones.")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Reads on as if the client had not asked for another protocol (Java's client asks for HTTP/2).

        llhttp stops after such a head, so a new one reads the head without the wish, then what followed.
        """
        assert self._parser is not None
        lines = [self._parser.get_method(), b" ", self._target, b" HTTP/1.1\r\n"]
        for name, value in self._raw:
            if name not in _UPGRADE_FIELDS:
                lines += (name, b": ", value, b"\r\n")
        if not self._parser.should_keep_alive():
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._begin()
        self._parser = httptools.HttpRequestParser(self)
        self._parse(b"".join(lines))
        self._parse(rest)

    # What llhttp calls.

    def on_message_begin(self) -> None:
        self.receiving = True

    def on_url(self, target: bytes) -> None:
        self._target += target
        if len(self._target) > _MAX_TARGET_BYTES:
            self._refuse(414, f"The request's target is longer than {_MAX_TARGET_BYTES} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Those that come after a chunked body are dropped.
        if not self.in_body:
            self._raw.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._headers = headers = Headers(self._raw)
        if self.received > self._max_header_bytes or len(self._raw) > _MAX_FIELDS:
            size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._raw)
            if size > self._max_header_bytes or len(self._raw) > _MAX_FIELDS:
                self.refusal = self._too_many_headers()
                raise _Stop
        self._check_start_line(self._parser)
        self._check_host(headers)
        self._check_framing(headers)
        self.in_body = True
        if headers.get(b"upgrade") is not None:
            self._upgrading = self._parser.should_upgrade()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        if self._chunked:
            self._size += len(data)
            if self._size > self._max_body_bytes:
                self._refuse_body()
        else:
            self._left -= len(data)

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        assert self._parser is not None
        assert self._headers is not None
        body = self._body
        path, _, query = self._target.partition(b"?")
        keep_alive = self._parser.should_keep_alive()
        self.requests.append(
            Request(
                self._parser.get_method().decode("ascii"),
                path.decode("ascii"),
                query,
                self._headers,
                body[0] if len(body) == 1 else b"".join(body),
                self._client,
                keep_alive,
                self._http10,
            )
        )
        self.last = not keep_alive
        self._begin()

    # Checks of a head.

    def _check_start_line(self, parser: httptools.HttpRequestParser) -> None:
        version = parser.get_http_version()
        self._http10 = version == "1.0"
        if version not in ("1.1", "1.0"):
            self._refuse(400, f"HTTP/{version} is not spoken here: use HTTP/1.1.")
        target, method = self._target, parser.get_method()
        if target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS"):
            self._refuse(400, "The request's target must be a path that begins with a slash.")
        if b"#" in target:
            self._refuse(400, "The request's target has a fragment (#...): leave it out.")
        if method == b"CONNECT":
            self._refuse(400, "This is no proxy: CONNECT is not for it.")

    def _check_host(self, headers: Headers) -> None:
        host = headers.get(b"host")
        if host is None:
            if not self._http10:
                self._refuse(400, "The request has no Host header.")
        elif headers.repeats and len(headers.all(b"host")) > 1:
            self._refuse(400, "The request has more than one Host header.")
        elif host != self._host:
            if _HOST.fullmatch(host):
                self._host = host
            else:
                self._refuse(400, "The request's Host header is not a valid host.")

    def _check_framing(self, headers: Headers) -> None:
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if coding is not None:
            self._check_coding(headers, coding, length)
            self._chunked = True
        elif length is not None:
            # llhttp has refused a second one.
            if len(length) > _MAX_LENGTH_DIGITS:
                self._refuse(400, "The request's Content-Length is not one sensible number.")
            self._left = int(length)
            if self._left > self._max_body_bytes:
                self._refuse_body()
        expected = headers.get(b"expect")
        if expected is not None and not self._http10:
            if expected.lower() != b"100-continue":
                self._refuse(417, "The only expectation met here is 100-continue.")
            self.expects = self._chunked or self._left > 0

    def _check_coding(self, headers: Headers, coding: bytes, length: bytes | None) -> None:
        if self._http10 or length is not None or len(headers.all(b"transfer-encoding")) > 1:
            self._refuse(400, "The request's Transfer-Encoding contradicts its version or its other headers.")
        *before, final = (name.strip().lower() for name in coding.split(b","))
        if final != b"chunked" or not all(name in _KNOWN_CODINGS for name in before):
            self._refuse(400, "The request's Transfer-Encoding must be chunked.")
        if before:
            self._refuse(501, "Transfer-Encoding is taken only as chunked: send the body uncompressed.")

    def _refuse_body(self) -> None:
        self._refuse(413, f"The request body is larger than {self._max_body_bytes} bytes.")

    def _too_many_headers(self) -> Refusal:
        return Refusal(
            431,
            f"The request's headers are more than {self._max_header_bytes} bytes or {_MAX_FIELDS} fields.",
        )

    def _refuse(self, status: int, message: str) -> None:
        self.refusal = Refusal(status, message)
        raise _Stop
