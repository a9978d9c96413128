"""The relay of an event stream, wherever the network splits it."""

import pytest

from toolkit.router.request.dialects import Endpoint
from toolkit.router.request.kvmember import NotAnObject
from toolkit.router.request.sse import EventRelay, EventTooLarge, response_id

PARAMS = b'{"remote_block_ids":[[1,2]],"remote_host":"10.0.0.1"}'
READ = {"remote_block_ids": [[1, 2]], "remote_host": "10.0.0.1"}
FOOLING = [
    b": a comment\n\n",
    b'data: {"choices":[{"delta":{"content":"data: [DONE]\\n\\n"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"\\"kv_transfer_params\\":{\\"x\\":1}"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"kv_transfer_params"}}]}\n\n',
    'data: {"choices":[{"delta":{"content":"é😀"}}]}\n\n'.encode(),
    b'event: ping\ndata: {"a":1}\n\n',
]
DONE = b"data: [DONE]\n\n"


def with_member(event, value):
    head, brace, tail = event.rpartition(b"}")
    return head + b',"kv_transfer_params":' + value + brace + tail


TERMINAL = b'data: {"choices":[{"finish_reason":"stop"}],"usage":{"n":1}}\n\n'
PLUGIN = b"".join([*FOOLING, with_member(TERMINAL, PARAMS), DONE])
NULLED = [with_member(event, b"null") if b"{" in event else event for event in FOOLING]
NATIVE = b"".join([*NULLED, with_member(TERMINAL, PARAMS), DONE])
CLEAN = b"".join([*FOOLING, TERMINAL, DONE])


def responses(created, completed):
    """As vLLM 0.29 writes it: the member is in each event that carries the response, null until the last."""
    events = [
        ("response.created", b'{"response":{"id":"resp_1","output":[]%s},"sequence_number":0}' % created),
        ("response.in_progress", b'{"response":{"id":"resp_1"%s,"metadata":null}}' % created),
        ("response.output_text.delta", b'{"delta":"event: response.completed\\n\\n","sequence_number":2}'),
        ("response.output_text.delta", b'{"delta":"kv_transfer_params","sequence_number":3}'),
        ("response.completed", b'{"response":{"id":"resp_1","status":"completed"%s},"type":"x"}' % completed),
    ]
    return b"".join(b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in events)


def messages(member):
    events = [
        ("message_start", b'{"type":"message_start","message":{"id":"m"}}'),
        ("content_block_delta", b'{"delta":{"text":"event: message_stop\\n\\n"}}'),
        ("message_delta", b'{"type":"message_delta","usage":{"output_tokens":4}%s}' % member),
        ("message_stop", b'{"type":"message_stop"}'),
    ]
    return b"".join(b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in events)


MEMBER = b',"kv_transfer_params":' + PARAMS
NULL = b',"kv_transfer_params":null'
STREAMS = {
    "plugin": (Endpoint.CHAT, PLUGIN, CLEAN),
    "native": (Endpoint.COMPLETIONS, NATIVE, CLEAN),
    "crlf": (Endpoint.CHAT, PLUGIN.replace(b"\n", b"\r\n"), CLEAN.replace(b"\n", b"\r\n")),
    "responses": (Endpoint.RESPONSES, responses(NULL, MEMBER), responses(b"", b"")),
    "messages": (Endpoint.MESSAGES, messages(MEMBER), messages(b"")),
}


def relayed(endpoint, parts):
    relay = EventRelay(endpoint)
    return b"".join(relay.feed(part) for part in parts) + relay.finish(), relay


@pytest.mark.parametrize("kind", STREAMS)
def test_split_at_every_byte(kind):
    endpoint, stream, clean = STREAMS[kind]
    for at in range(len(stream) + 1):
        out, relay = relayed(endpoint, [stream[:at], stream[at:]])
        assert out == clean
        assert (relay.captured, relay.done) == (READ, True)


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
def test_pieces_of_every_size(kind, size):
    endpoint, stream, clean = STREAMS[kind]
    out, relay = relayed(endpoint, [stream[at : at + size] for at in range(0, len(stream), size)])
    assert out == clean
    assert (relay.captured, relay.done) == (READ, True)


@pytest.mark.parametrize("kind", STREAMS)
def test_the_end_is_noted_with_the_last_event_and_not_before(kind):
    endpoint, stream, _ = STREAMS[kind]
    gap = b"\r\n\r\n" if kind == "crlf" else b"\n\n"
    events = [event + gap for event in stream.split(gap)[:-1]]
    relay = EventRelay(endpoint)
    told = []
    for event in events:
        relay.feed(event)
        told.append(relay.done)
    assert told == [False] * (len(events) - 1) + [True]


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_a_response_may_end_in_several_ways(kind):
    relay = EventRelay(Endpoint.RESPONSES)
    event = b'event: response.%s\ndata: {"response":{"id":"r"}}\n\n' % kind.encode()
    assert relay.feed(b'event: response.created\ndata: {"response":{"id":"r"}}\n\n' + event).endswith(event)
    assert relay.done


@pytest.mark.parametrize(("kind", "id"), [("responses", "resp_1"), ("plugin", None)])
@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_the_id_of_a_response_is_noted_where_it_is_asked_for(kind, id, size):
    endpoint, stream, clean = STREAMS[kind]
    relay = EventRelay(endpoint, wants_id=True)
    out = b"".join(relay.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    assert (out + relay.finish(), relay.response_id) == (clean, id)
    assert relayed(endpoint, [stream])[1].response_id is None


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (b'{"id":"resp_2","output":[]}', "resp_2"),
        (b'{"response":{"id":"resp_3"},"id":"other"}', "resp_3"),
        (b'{"id":7}', None),
        (b'{"response":{}}', None),
        (b"[]", None),
        (b"[DONE]", None),
    ],
)
def test_the_id_in_an_answer(text, id):
    assert response_id(text) == id


def test_whole_events_are_not_held():
    relay = EventRelay()
    assert relay.feed(TERMINAL) == TERMINAL
    assert relay.feed(TERMINAL + b"data: {") == TERMINAL
    assert relay.feed(b'"a":1}\n') == b""
    assert relay.feed(b"\ndata:") == b'data: {"a":1}\n\n'
    assert relay.feed(b" [DONE]\n\n") == DONE


def test_what_has_nothing_to_cut_is_passed_without_a_copy():
    assert EventRelay().feed(TERMINAL) is TERMINAL


def test_a_stream_without_last_blank_line_is_passed_whole():
    relay = EventRelay()
    assert relay.feed(b"data: [DONE]") == b""
    assert relay.finish() == b"data: [DONE]"
    assert relay.done


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_metadata_that_cannot_be_cut_out_stops_the_relay(endpoint):
    with pytest.raises(NotAnObject):
        EventRelay(endpoint).feed(b'data: {"kv_transfer_params":\ndata: {"a":1}}\n\n')


def test_an_event_without_end_does_not_fill_the_memory():
    relay = EventRelay()
    piece = b"x" * (1 << 20)
    for _ in range(64):
        assert relay.feed(piece) == b""
    with pytest.raises(EventTooLarge):
        relay.feed(piece)
