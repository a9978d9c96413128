import hashlib

import pytest

from toolkit.router.observe.record import trace_id

TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("fields", "readback"),
    [
        ({}, "none"),
        # Prefill's count without an offer says nothing about a readback.
        ({"kv_read_tokens": 0}, "none"),
        ({"offered": True, "kv_read_tokens": 16}, "hit"),
        ({"offered": True, "kv_read_tokens": 0}, "declined"),
        ({"offered": True, "kv_read_tokens": None}, "unknown"),
    ],
)
def test_the_readbacks_outcome_follows_from_what_was_offered_and_read(ended, fields, readback):
    assert ended(**fields).readback == readback


@pytest.mark.parametrize(
    ("fields", "ttft_ms"),
    [
        ({"stream": True, "status": 200, "first_byte_at": 100.25}, 250.0),
        # Told by somebody who knows better, for example that the first bytes were only a comment.
        ({"stream": True, "status": 200, "first_byte_at": 100.25, "ttft_ms": 300.0}, 300.0),
        # A whole answer has no first token, and an error's first byte is none.
        ({"stream": False, "status": 200, "first_byte_at": 100.25}, None),
        ({"stream": True, "status": 503, "first_byte_at": 100.25}, None),
        ({"stream": True, "status": 200}, None),
    ],
)
def test_only_a_stream_that_began_has_a_time_to_first_token(ended, fields, ttft_ms):
    record = ended(**fields)
    assert record.ttft_ms == ttft_ms
    assert record.total_ms == 500.0


def test_a_conversation_is_shown_as_a_digest(ended):
    key = b"\x00\xff key"
    assert ended(conversation=key).digest == hashlib.sha256(key).hexdigest()[:12]
    assert ended().digest is None


@pytest.mark.parametrize(
    ("status", "outcome", "failed"),
    [
        (200, "ok", False),
        (400, "ok", False),
        (429, "refused", False),
        (503, "refused", True),
        (None, "client-gone", False),
        (200, "decode-broke", True),
        (200, "engine-error", True),
        (200, "shutdown", True),
        (None, "internal-error", True),
    ],
)
def test_a_failure_is_what_the_client_did_not_cause(ended, status, outcome, failed):
    assert ended(status=status, outcome=outcome).failed is failed


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (b"00-" + TRACE + b"-00f067aa0ba902b7-01", TRACE.decode()),
        (b" 00-" + TRACE + b"-00f067aa0ba902b7-01 ", TRACE.decode()),
        # A later version may add members.
        (b"cc-" + TRACE + b"-00f067aa0ba902b7-01-more", TRACE.decode()),
        (b"ff-" + TRACE + b"-00f067aa0ba902b7-01", None),
        (b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01", None),
        (b"00-" + TRACE + b"-" + b"0" * 16 + b"-01", None),
        (b"00-" + TRACE.upper() + b"-00f067aa0ba902b7-01", None),
        (b"00-" + TRACE[:-1] + b"-00f067aa0ba902b7-01", None),
        (b"00-" + TRACE + b"-00f067aa0ba902b7-01\nmore", None),
        (b"", None),
        (None, None),
    ],
)
def test_the_trace_id_is_taken_from_a_well_formed_traceparent_only(header, found):
    assert trace_id(header) == found
