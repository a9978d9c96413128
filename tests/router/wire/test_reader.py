"""Bytes to requests: the same ones however they arrive, and none where two readers could disagree."""

import random
from itertools import pairwise

import pytest

from toolkit.router.wire.reader import MAX_WAITING, RequestReader

HOST = b"Host: h\r\n"


def read(*pieces, max_body=1000, max_header=16384):
    reader = RequestReader(max_body, max_header, "peer")
    for piece in pieces:
        reader.feed(piece)
    return reader


def post(fields=b"", body=b""):
    return b"POST /v1/x HTTP/1.1\r\n" + HOST + fields + b"\r\n" + body


def chunked(body):
    return post(b"Transfer-Encoding: chunked\r\n", body)


def test_a_request_is_read_with_all_its_parts():
    reader = read(
        b"POST /a%20b?c=d&e HTTP/1.1\r\nHost: h:1\r\nX-A:  1 \t\r\nX-B:\r\nContent-Length: 3\r\n\r\nabc"
    )
    (request,) = reader.requests
    assert (request.method, request.path, request.query) == ("POST", "/a%20b", b"c=d&e")
    assert request.headers.raw == [
        (b"host", b"h:1"),
        (b"x-a", b"1"),
        (b"x-b", b""),
        (b"content-length", b"3"),
    ]
    assert (request.body, request.client) == (b"abc", "peer")
    assert (request.keep_alive, request.http10) == (True, False)
    assert (reader.last, reader.receiving) == (False, False)


# What a lenient reader lets through and another one behind or before it understands otherwise.
AMBIGUOUS = {
    "length and coding": post(b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    "coding and length": post(b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", b"0\r\n\r\n"),
    "two lengths": post(b"Content-Length: 3\r\nContent-Length: 4\r\n", b"abcd"),
    "the same length twice": post(b"Content-Length: 3\r\nContent-Length: 3\r\n", b"abc"),
    "a list of lengths": post(b"Content-Length: 3, 3\r\n", b"abc"),
    "signed length": post(b"Content-Length: +3\r\n", b"abc"),
    "negative length": post(b"Content-Length: -3\r\n", b"abc"),
    "hexadecimal length": post(b"Content-Length: 0x3\r\n", b"abc"),
    "length with a blank": post(b"Content-Length: 3 0\r\n", b"abc"),
    "empty length": post(b"Content-Length:\r\n", b"abc"),
    "length beyond 64 bits": post(b"Content-Length: 18446744073709551617\r\n", b"a"),
    "length of many zeros": post(b"Content-Length: " + b"0" * 3000 + b"1\r\n", b"a"),
    "blank before the colon": post(b"Content-Length : 3\r\n", b"abc"),
    "unknown coding": post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
    "coding before chunked": post(b"Transfer-Encoding: identity, chunked\r\n", b"0\r\n\r\n"),
    "empty coding before chunked": post(b"Transfer-Encoding: , chunked\r\n", b"0\r\n\r\n"),
    "coding after chunked": post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"),
    "chunked twice": post(b"Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n"),
    "quoted coding": post(b'Transfer-Encoding: "chunked"\r\n', b"0\r\n\r\n"),
    "coding with a vertical tab": post(b"Transfer-Encoding: \x0bchunked\r\n", b"0\r\n\r\n"),
    "two codings": post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", b"0\r\n\r\n"),
    "two codings, the last chunked": post(
        b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"
    ),
    "gzip, then chunked in a second field": post(
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"
    ),
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded field": post(b"X-A: b\r\n c\r\n"),
    "field folded with a tab": post(b"X-A: b\r\n\tc\r\n"),
    "folded coding": post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
    "folded first field": b"GET / HTTP/1.1\r\n Host: h\r\n\r\n",
    "line feeds alone": b"GET / HTTP/1.1\nHost: h\n\n",
    "line feed after the start line": b"GET / HTTP/1.1\nHost: h\r\n\r\n",
    "line feed after a field": b"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n",
    "line feed at the end": b"GET / HTTP/1.1\r\nHost: h\r\n\n",
    "carriage return in a field": b"GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n",
    "two carriage returns": b"GET / HTTP/1.1\r\nHost: h\r\r\n\r\n",
    "zero byte in a value": post(b"X: a\0b\r\n"),
    "control byte in a value": post(b"X: a\x01b\r\n"),
    "control byte in a name": post(b"X\x01: b\r\n"),
    "blank in a name": post(b"X Y: b\r\n"),
    "empty name": post(b": b\r\n"),
    "no colon": post(b"X\r\n"),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "two hosts, three fields": b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\nHost: a\r\n\r\n",
    "host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "host with a blank": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "host with a user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "absolute target": b"GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n",
    "authority target": b"GET h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    "tunnel": b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    "tunnel to a path": b"CONNECT /h HTTP/1.1\r\nHost: h\r\n\r\n",
    "asterisk for GET": b"GET * HTTP/1.1\r\nHost: h\r\n\r\n",
    "fragment": b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
    "fragment after a query": b"GET /a?b#c HTTP/1.1\r\nHost: h\r\n\r\n",
    "target that is not ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n",
    "control byte in the target": b"GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n",
    "tab after the method": b"GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n",
    "blank after the version": b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n",
    "blank before the method": b" GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "lower-case method": b"get / HTTP/1.1\r\nHost: h\r\n\r\n",
    "unknown method": b"FROB / HTTP/1.1\r\nHost: h\r\n\r\n",
    "HTTP/0.9 with its version": b"GET / HTTP/0.9\r\nHost: h\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: h\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: h\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00",
    "chunk size in hexadecimal notation": chunked(b"0x3\r\nabc\r\n0\r\n\r\n"),
    "signed chunk size": chunked(b"+3\r\nabc\r\n0\r\n\r\n"),
    "blank after the chunk size": chunked(b"3 \r\nabc\r\n0\r\n\r\n"),
    "blank before the chunk size": chunked(b" 3\r\nabc\r\n0\r\n\r\n"),
    "empty chunk size": chunked(b"\r\nabc\r\n0\r\n\r\n"),
    "chunk size beyond 64 bits": chunked(b"10000000000000003\r\nabc\r\n0\r\n\r\n"),
    "line feed after the chunk size": chunked(b"3\nabc\r\n0\r\n\r\n"),
    "line feed after the chunk": chunked(b"3\r\nabc\n0\r\n\r\n"),
    "nothing after the chunk": chunked(b"3\r\nabc0\r\n\r\n"),
    "chunk longer than its size": chunked(b"3\r\nabcd\r\n0\r\n\r\n"),
    "line feed in a chunk extension": chunked(b"3;a\nabc\r\n0\r\n\r\n"),
    "carriage return in a chunk extension": chunked(b"3;a\rb\r\nabc\r\n0\r\n\r\n"),
    "line feed in a quoted chunk extension": chunked(b'3;a="\nb"\r\nabc\r\n0\r\n\r\n'),
    "length in the trailer": chunked(b"0\r\nContent-Length: 3\r\n\r\n"),
    "coding in the trailer": chunked(b"0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "line feed at the end of the chunks": chunked(b"0\n\n"),
}


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
def test_ambiguous_framing_is_refused(data, bytewise):
    pieces = [bytes([byte]) for byte in data] if bytewise else [data]
    reader = read(*pieces)
    assert reader.refusal is not None
    assert reader.refusal.status == 400
    assert not reader.requests
    # Nothing after it is ever taken for a request.
    reader.feed(b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n")
    assert not reader.requests


def test_a_coding_that_is_understood_but_not_spoken_is_501():
    reader = read(post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"))
    assert (reader.refusal.status, list(reader.requests)) == (501, [])


FINE = {
    "length with blanks": (post(b"Content-Length:   3 \r\n", b"abc"), b"abc"),
    "length with zeros": (post(b"Content-Length: 0003\r\n", b"abc"), b"abc"),
    "chunks": (chunked(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), b"abcde"),
    "chunk size with zeros and letters": (
        chunked(b"000a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n"),
        b"0123456789" * 2,
    ),
    "chunk extensions": (chunked(b'3;a;b=c;d="e f"\r\nabc\r\n0;x\r\n\r\n'), b"abc"),
    "trailer": (chunked(b"3\r\nabc\r\n0\r\nX-Sum: 1\r\nHost: evil\r\n\r\n"), b"abc"),
    "coding in capitals": (post(b"Transfer-Encoding:\tCHUNKED \r\n", b"0\r\n\r\n"), b""),
    "no body": (post(), b""),
    "line ends before": (b"\r\n\r\n" + post(), b""),
    "body of a GET": (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\nx", b"x"),
}


@pytest.mark.parametrize(("data", "body"), FINE.values(), ids=FINE)
@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
def test_unambiguous_framing_is_read(data, body, bytewise):
    reader = read(*([bytes([byte]) for byte in data] if bytewise else [data]))
    assert reader.refusal is None
    (request,) = reader.requests
    assert request.body == body
    assert request.headers.all(b"host") == [b"h"]


def test_asterisk_is_for_options():
    (request,) = read(b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n").requests
    assert (request.method, request.path) == ("OPTIONS", "*")


@pytest.mark.parametrize(
    ("head", "keep_alive", "http10"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n", True, False),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n", False, False),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nConnection: close\r\n", False, False),
        (b"GET / HTTP/1.0\r\n", False, True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n", True, True),
    ],
)
def test_who_stays_on_is_read_from_version_and_connection(head, keep_alive, http10):
    reader = read(head + b"\r\n", b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (reader.requests[0].keep_alive, reader.requests[0].http10) == (keep_alive, http10)
    # What follows a request that was to be the last is neither a request nor an error.
    assert (reader.last, len(reader.requests), reader.refusal) == (
        not keep_alive,
        1 + keep_alive,
        None,
    )


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (post(b"Content-Length: 1001\r\n"), 413),
        (post(b"Content-Length: 18446744073709551615\r\n"), 400),
        (post(b"Content-Length: 999999999999999999\r\n"), 413),
        (chunked(b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx"), 413),
        (chunked(b"1\r\nx\r\n" * 1001), 413),
        (chunked(b"1;" + b"e" * 200 + b"\r\nx\r\n" * 3) + b"1;" + b"e" * 40_000, 400),
        (chunked(b"0\r\n" + b"X: y\r\n" * 8000), 400),
        (post(b"X: " + b"y" * 16384 + b"\r\n"), 431),
        (post(b"X: " + b"y" * 16384), 431),
        (b"POST / HTTP/1.1\r\n" + HOST + b"X" * 20_000, 431),
        (post(b"X: y\r\n" * 260), 431),
        (b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\n", 414),
        (b"GET /" + b"a" * 9000, 414),
        (post(b"Expect: tea\r\nContent-Length: 1\r\n"), 417),
    ],
)
@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_every_size_has_a_limit(data, status, step):
    reader = read(*(data[at : at + step] for at in range(0, len(data), step)))
    assert reader.refusal.status == status
    assert not reader.requests


def test_sizes_up_to_the_limits_are_taken():
    for data, size in (
        (post(b"Content-Length: 1000\r\n", b"x" * 1000), 1000),
        (chunked(b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n"), 1000),
        (post(b"X: " + b"y" * 16000 + b"\r\n"), 0),
        (post(b"X: y\r\n" * 250), 0),
    ):
        reader = read(data)
        assert reader.refusal is None
        assert len(reader.requests[0].body) == size


def test_a_body_is_awaited_with_100_continue_only_if_there_is_one():
    expecting = b"Expect: 100-Continue\r\n"
    assert read(post(expecting + b"Content-Length: 1\r\n")).expects
    assert read(post(expecting + b"Transfer-Encoding: chunked\r\n")).expects
    assert not read(post(expecting)).expects
    assert not read(b"POST / HTTP/1.0\r\n" + expecting + b"Content-Length: 1\r\n\r\n").expects


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize(
    ("framing", "sent"),
    [(b"Content-Length: 3\r\n", b"abc"), (b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n0\r\n\r\n")],
)
@pytest.mark.parametrize("step", [1, 50, 1 << 20])
def test_a_wish_for_another_protocol_is_ignored(framing, sent, step):
    """Java's client asks for HTTP/2 in this way, with a body."""
    data = post(UPGRADE + framing + b"X-A: b\r\n", sent) + post(b"Content-Length: 1\r\n", b"z")
    reader = read(*(data[at : at + step] for at in range(0, len(data), step)))
    assert reader.refusal is None
    first, second = reader.requests
    assert (first.method, first.path, first.body, second.body) == ("POST", "/v1/x", b"abc", b"z")
    assert first.headers.get(b"x-a") == b"b"
    assert first.headers.get(b"upgrade") is None
    assert first.keep_alive


def test_a_wish_for_another_protocol_does_not_keep_the_connection():
    reader = read(post(b"Connection: close, upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n", b"x"))
    assert (reader.requests[0].body, reader.requests[0].keep_alive, reader.last) == (b"x", False, True)


def stream_of_requests(rng):
    """Good requests one after the other, and what they are."""
    data, expected = b"", []
    for number in range(rng.randrange(1, 12)):
        body = rng.randbytes(rng.choice([0, 1, 10, 300, 20_000, 70_000]))
        path = b"/%d" % number
        if rng.random() < 0.5 and body:
            cuts = sorted({0, len(body), *(rng.randrange(len(body)) for _ in range(rng.randrange(5)))})
            parts = [body[a:b] for a, b in pairwise(cuts)]
            framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
            data += b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + framed
        else:
            data += (
                b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body
            )
        expected.append((path.decode(), body))
    return data, expected


@pytest.mark.parametrize("seed", range(40))
def test_requests_are_the_same_however_they_arrive(seed):
    rng = random.Random(seed)
    data, expected = stream_of_requests(rng)
    reader = RequestReader(1 << 20, 4096, "")
    seen = []
    at = 0
    while at < len(data):
        step = rng.choice([1, 3, 100, 5000, 250_000])
        reader.feed(data[at : at + step])
        at += step
        while reader.requests:
            request = reader.requests.popleft()
            seen.append((request.path, request.body))
            reader.feed(b"")
    assert reader.refusal is None
    assert seen == expected


def test_few_requests_are_read_ahead():
    one = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    reader = read(one * 8000)
    most = 0
    count = 0
    while reader.requests:
        most = max(most, len(reader.requests))
        assert reader.full or count + len(reader.requests) == 8000
        reader.requests.popleft()
        count += 1
        reader.feed(b"")
    assert count == 8000
    assert most <= MAX_WAITING + 8192 // len(one) + 1
