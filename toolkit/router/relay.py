"""From a decode stream to the client: events pass as they come, the new handle is taken out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from toolkit.router.call import Call
from toolkit.router.fleet.legs import Leg
from toolkit.router.outcome import AnsweredBadly, PassOn
from toolkit.router.request.facts import Facts
from toolkit.router.request.kvmember import cut_shown
from toolkit.router.request.refusal import Refusal
from toolkit.router.request.sse import EventRelay, is_event_stream
from toolkit.router.wire.client import Answer, EngineStream, Sink

# A typed error event, or vLLM's `data: {"error": ...}`; the group is the JSON text.
_ERROR = re.compile(
    rb'^(?:event: error\r?\ndata: |data: (?=\{"(?:error"|object":"error")))(.*)$', re.MULTILINE
)

# For an error that repeats what the router put into the request and does not let it be told apart.
_UNSHOWN = Refusal(502, "The decode engine failed in the middle of its answer; the router's log names it.")


class StreamRelay:
    """The sink of one decode stream, if the answer is one. The client's answer begins with the first whole
    event, so that a stream that breaks or reports an error before it can still be asked for elsewhere.

    Attributes:
        failed: the stream carried an error event.
    """

    def __init__(self, leg: Leg, call: Call, facts: Facts, on_begin: Callable[[], None]) -> None:
        """on_begin: called at the first event, when the prompt has been computed."""
        self._on_begin = on_begin
        self._leg = leg
        self._stream: EngineStream | None = None
        self._call = call
        self._events = EventRelay(facts.endpoint, wants_id=facts.stores)
        self.failed = False

    def take(self, stream: EngineStream) -> Sink | None:
        """What relays an answer whose head has come; None where it is no stream of events."""
        if not 200 <= stream.status < 300 or not is_event_stream(stream.headers):
            return None
        self._stream = stream
        return self._relay

    @property
    def taken(self) -> bool:
        """The answer is a stream of events."""
        return self._stream is not None

    @property
    def captured(self) -> Any:
        """The KV metadata that the stream carried."""
        return self._events.captured

    @property
    def response_id(self) -> str | None:
        """Of a response that the engine may have stored."""
        return self._events.response_id

    @property
    def done(self) -> bool:
        """The stream's last event has passed."""
        return self._events.done

    def _relay(self, data: bytes) -> None:
        """Raises PassOn or AnsweredBadly (an error before anything else), NotAnObject, EventTooLarge."""
        ready = self._events.feed(data)
        if ready:
            self._pass(ready)

    def finish(self) -> None:
        """After the stream's regular end: its last event may lack the blank line. Part of another one is not
        passed on: the error event that follows it would be taken for the rest of it."""
        rest = self._events.finish()
        if rest and self.done:
            self._pass(rest)

    def _pass(self, events: bytes) -> None:
        if events.find(b"error") >= 0 and (error := _ERROR.search(events)) is not None:
            self.failed = True
            if not self._call.reply.started and error.start() == 0:
                raise _as_answer(self._leg, error[1].strip())
            events = cut_shown(events) or _UNSHOWN.event(self._call.errors)
        if not self._call.reply.started:
            self._begin()
        self._call.write(events)

    def _begin(self) -> None:
        stream, reply = self._stream, self._call.reply
        assert stream is not None
        self._on_begin()
        self._call.start(stream.status, stream.headers)
        reply.on_pause, reply.on_resume = stream.pause, stream.resume


def _as_answer(leg: Leg, error: bytes) -> PassOn | AnsweredBadly:
    """What the engine would have answered if it had known of the error before it began a stream."""
    try:
        told = orjson.loads(error)
    except orjson.JSONDecodeError:
        told = None
    detail = told.get("error") if isinstance(told, dict) else None
    code = detail.get("code") if isinstance(detail, dict) else None
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    answer = Answer(status, [(b"content-type", b"application/json")], error)
    return PassOn(leg, answer) if status < 500 else AnsweredBadly(leg, answer)
