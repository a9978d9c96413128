"""The client's side of one exchange: reading its body, sending it an answer, noting what was sent."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Send

from toolkit.router.clientwatch import ClientGone
from toolkit.router.headers import RawHeaders
from toolkit.router.record import RequestRecord
from toolkit.router.refusal import Refusal

JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]


async def read_body(receive: Receive, headers: Headers, *, limit: int, stall_timeout_s: float) -> bytes:
    """The whole request body.

    Raises:
        Refusal: 413, it is larger than `limit` bytes; 408, it stopped coming.
        ClientGone: the client left before its end.
    """
    too_large = Refusal(413, f"The request body is larger than {limit} bytes.")
    declared = headers.get("content-length", "")
    refused = declared.isdecimal() and int(declared) > limit
    if refused and "expect" in headers:
        # The client waits for leave to send: the body never has to travel.
        raise too_large
    parts: list[bytes] = []
    size = 0
    while True:
        message = await _receive(receive, stall_timeout_s)
        part = message.get("body", b"")
        size += len(part)
        refused = refused or size > limit
        if not refused:
            parts.append(part)
        # A refused body is still read (and dropped) for a while: closing on a client that is sending
        # would reset its connection and take our answer with it.
        if size > 2 * limit:
            raise too_large
        if not message.get("more_body"):
            break
    if refused:
        raise too_large
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _receive(receive: Receive, stall_timeout_s: float) -> Message:
    try:
        async with asyncio.timeout(stall_timeout_s):
            message = await receive()
    except TimeoutError:
        raise Refusal(408, "The request body did not arrive in time.") from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message


class Reply:
    """Sends over ASGI and fills the record. A client that stops reading counts as gone."""

    def __init__(self, send: Send, record: RequestRecord, stall_timeout_s: float) -> None:
        self._send = send
        self._record = record
        self._stall_timeout_s = stall_timeout_s
        self._streaming = False

    async def refuse(self, refusal: Refusal) -> None:
        headers = list(JSON_HEADERS)
        if refusal.status in (408, 413):
            # The rest of the body may still come: this connection cannot carry another request.
            headers.append((b"connection", b"close"))
        await self.whole(refusal.status, headers, refusal.body())

    async def break_off(self, refusal: Refusal) -> None:
        """Ends an answer that cannot be completed, in the form that its beginning allows."""
        if self._record.status is None:
            await self.refuse(refusal)
        elif self._streaming:
            await self.chunk(refusal.event())
            await self.end()

    async def whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        await self._start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self._body(body, more=False)

    async def start_stream(self, status: int, headers: RawHeaders) -> None:
        self._streaming = True
        await self._start(status, headers)

    async def _start(self, status: int, headers: RawHeaders) -> None:
        self._record.status = status
        ours = [(b"x-request-id", self._record.request_id.encode())]
        if self._record.path is not None:
            ours.append((b"x-kv-path", self._record.path.encode()))
        if self._record.prefill_ms is not None:
            ours.append((b"x-prefill-ms", f"{self._record.prefill_ms:.1f}".encode()))
        if self._record.kv_read_tokens is not None:
            ours.append((b"x-kv-read-tokens", str(self._record.kv_read_tokens).encode()))
        await self._timed({"type": "http.response.start", "status": status, "headers": [*headers, *ours]})

    async def chunk(self, data: bytes) -> None:
        if self._record.ttft_ms is None:
            self._record.ttft_ms = (time.monotonic() - self._record.started) * 1000
        await self._body(data, more=True)

    async def end(self) -> None:
        await self._body(b"", more=False)

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._timed({"type": "http.response.body", "body": data, "more_body": more})
        self._record.sent_bytes += len(data)

    async def _timed(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await self._send(message)
        except TimeoutError:
            raise ClientGone from None
