"""Which header fields travel, and where an engine is reached."""

import re

import pytest

from toolkit.router.wire.headers import Headers, request_id, to_client, to_engine
from toolkit.router.wire.origin import Origin


def test_get_gives_the_first_and_all_gives_every_value():
    headers = Headers([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    assert (headers.get(b"a"), headers.get(b"b"), headers.get(b"c")) == (b"1", b"2", None)
    assert (headers.all(b"a"), headers.all(b"c")) == ([b"1", b"3"], [])
    assert headers.repeats
    assert not Headers([(b"a", b"1"), (b"b", b"2")]).repeats
    assert not Headers([]).repeats


def test_a_sane_request_id_is_kept():
    assert request_id(Headers([(b"x-request-id", b"req-1:a/b")])) == "req-1:a/b"


@pytest.mark.parametrize("given", [b"", b"a b", b"a\tb", b"\xff", b"x" * 129, b'"'])
def test_any_other_request_id_is_replaced(given):
    made = {request_id(Headers([(b"x-request-id", given)])) for _ in range(3)} | {request_id(Headers([]))}
    assert len(made) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)


CLIENT = Headers(
    [
        (b"host", b"router"),
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer client"),
        (b"x-api-key", b"client"),
        (b"traceparent", b"00-1-2-01"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"3"),
        (b"content-encoding", b"gzip"),
        (b"accept-encoding", b"gzip"),
        (b"expect", b"100-continue"),
        (b"x-request-id", b"theirs"),
        (b"x-conversation-id", b"c"),
        (b"x-kv-path", b"prefill"),
        (b"x-latin", b"caf\xe9"),
    ]
)


def lines(headers, authorization):
    text = to_engine(headers, "ours", authorization)
    assert text.endswith(b"\r\n")
    return text.split(b"\r\n")[:-1]


def test_end_to_end_fields_reach_the_engine_and_no_others():
    assert lines(CLIENT, None) == [
        b"content-type: application/json",
        b"authorization: Bearer client",
        b"x-api-key: client",
        b"traceparent: 00-1-2-01",
        b"x-latin: caf\xe9",
        b"accept-encoding: identity",
        b"x-request-id: ours",
    ]


@pytest.mark.parametrize(
    ("authorization", "sent"), [(b"Bearer engine", [b"authorization: Bearer engine"]), (b"", [])]
)
def test_the_engines_credential_replaces_the_clients(authorization, sent):
    shown = [line for line in lines(CLIENT, authorization) if b"client" in line or b"engine" in line]
    assert shown == sent


def test_an_engines_end_to_end_fields_reach_the_client():
    raw = [
        (b"content-type", b"text/event-stream"),
        (b"connection", b"close, x-hop"),
        (b"x-hop", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"1"),
        (b"date", b"then"),
        (b"server", b"uvicorn"),
        (b"x-request-id", b"theirs"),
        (b"retry-after", b"3"),
    ]
    assert to_client(raw) == [(b"content-type", b"text/event-stream"), (b"retry-after", b"3")]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:8100", ("http", "h", 8100, "", b"h:8100")),
        ("http://h", ("http", "h", 80, "", b"h")),
        ("http://h:80/", ("http", "h", 80, "", b"h")),
        ("https://h", ("https", "h", 443, "", b"h")),
        ("https://h:80/a/b/", ("https", "h", 80, "/a/b", b"h:80")),
        ("http://[::1]:8100", ("http", "::1", 8100, "", b"[::1]:8100")),
        ("http://[fe80::1%eth0]:1", ("http", "fe80::1%eth0", 1, "", b"[fe80::1]:1")),
        ("http://bücher:1/ä%20", ("http", "bücher", 1, "/%C3%A4%20", b"xn--bcher-kva:1")),
    ],
)
def test_an_origin_is_read_from_a_url(url, expected):
    origin = Origin.parse(url)
    assert (origin.scheme, origin.host, origin.port, origin.base, origin.host_header) == expected
    assert origin == Origin.parse(url)
    assert hash(origin) == hash(Origin.parse(url))


@pytest.mark.parametrize("url", ["", "h:80", "ftp://h", "http://"])
def test_what_is_no_engines_url_is_refused(url):
    with pytest.raises(ValueError, match="http://host:port"):
        Origin.parse(url)
