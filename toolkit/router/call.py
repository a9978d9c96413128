"""A client's request on its way through the router: what came, the way back, and what is known of it."""

from __future__ import annotations

import time

from toolkit.router.observe.record import RequestRecord, trace_id
from toolkit.router.request.kvmember import cut_shown
from toolkit.router.request.refusal import Dialect, Refusal
from toolkit.router.wire.client import Answer
from toolkit.router.wire.headers import RawHeaders, request_id, to_client
from toolkit.router.wire.server import Reply, Request

_JSON: RawHeaders = [(b"content-type", b"application/json")]


class Call:
    """`errors` is the form in which the endpoint's clients read errors."""

    __slots__ = ("errors", "record", "reply", "request")

    def __init__(self, request: Request, reply: Reply, errors: Dialect) -> None:
        self.request = request
        self.reply = reply
        self.errors = errors
        self.record = RequestRecord(request_id(request.headers), time.monotonic(), endpoint=request.path)
        self.record.trace = trace_id(request.headers.get(b"traceparent"))

    def start(self, status: int, headers: RawHeaders) -> None:
        """Begins a streamed answer."""
        self.record.status = status
        self.reply.start(status, to_client(headers) + self._ours())

    def write(self, data: bytes) -> None:
        """A piece of it."""
        record = self.record
        record.last_byte_at = time.monotonic()
        if record.first_byte_at is None:
            record.first_byte_at = record.last_byte_at
        record.sent_bytes += len(data)
        self.reply.write(data)

    def pass_on(self, answer: Answer) -> None:
        """An engine's whole answer; of an error that repeats the request, without what the router put in."""
        body = answer.body if answer.status < 400 else cut_shown(answer.body)
        if body is None:
            self.refuse(Refusal(answer.status, "The engine refused the request; the router's log names it."))
            return
        self._whole(answer.status, to_client(answer.headers), body)

    def refuse(self, refusal: Refusal) -> None:
        """An error of the router, in the form that the answer's beginning allows."""
        if self.reply.ended:
            return
        if refusal.status >= 500 and not self.record.failures:
            self.record.failures.append(refusal.message)
        if self.reply.started:
            self.write(refusal.event(self.errors))
            self.reply.end()
            return
        headers = list(_JSON)
        if refusal.retry_after_s is not None:
            headers.append((b"retry-after", str(refusal.retry_after_s).encode()))
        if refusal.allow is not None:
            headers.append((b"allow", refusal.allow.encode()))
        if refusal.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        self._whole(refusal.status, headers, refusal.body(self.errors))

    def _whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        record = self.record
        record.status, record.sent_bytes = status, len(body)
        record.first_byte_at = record.last_byte_at = time.monotonic()
        self.reply.whole(status, headers + self._ours(), body)

    def _ours(self) -> RawHeaders:
        record = self.record
        ours: RawHeaders = [(b"x-request-id", record.request_id.encode())]
        if record.path is not None:
            ours.append((b"x-kv-path", record.path.encode()))
        if record.prefill_ms is not None:
            ours.append((b"x-prefill-ms", b"%.1f" % record.prefill_ms))
        if record.kv_read_tokens is not None:
            ours.append((b"x-kv-read-tokens", b"%d" % record.kv_read_tokens))
        return ours
