"""The relay of an event stream, wherever the network splits it."""

import pytest

from toolkit.router.kvmember import NotAnObject
from toolkit.router.sse import EventRelay

PARAMS = b'{"remote_block_ids":[[1,2]],"remote_host":"10.0.0.1"}'
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
STREAMS = {
    "plugin": (PLUGIN, CLEAN),
    "native": (NATIVE, CLEAN),
    "crlf": (PLUGIN.replace(b"\n", b"\r\n"), CLEAN.replace(b"\n", b"\r\n")),
}


def relayed(parts):
    relay = EventRelay()
    return b"".join(relay.feed(part) for part in parts) + relay.finish(), relay.captured


@pytest.mark.parametrize("kind", STREAMS)
def test_split_at_every_byte(kind):
    stream, clean = STREAMS[kind]
    for at in range(len(stream) + 1):
        out, captured = relayed([stream[:at], stream[at:]])
        assert out == clean
        assert captured == {"remote_block_ids": [[1, 2]], "remote_host": "10.0.0.1"}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
def test_pieces_of_every_size(kind, size):
    stream, clean = STREAMS[kind]
    out, captured = relayed([stream[at : at + size] for at in range(0, len(stream), size)])
    assert out == clean
    assert captured is not None


def test_whole_events_are_not_held():
    relay = EventRelay()
    assert relay.feed(TERMINAL) == TERMINAL
    assert relay.feed(TERMINAL + b"data: {") == TERMINAL
    assert relay.feed(b'"a":1}\n') == b""
    assert relay.feed(b"\ndata:") == b'data: {"a":1}\n\n'
    assert relay.feed(b" [DONE]\n\n") == DONE


def test_a_stream_without_last_blank_line_is_passed_whole():
    relay = EventRelay()
    assert relay.feed(b"data: [DONE]") == b""
    assert relay.finish() == b"data: [DONE]"


def test_metadata_that_cannot_be_cut_out_stops_the_relay():
    with pytest.raises(NotAnObject):
        EventRelay().feed(b'data: {"kv_transfer_params":\ndata: {"a":1}}\n\n')
