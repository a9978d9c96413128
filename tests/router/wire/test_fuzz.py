"""Bytes that nobody should send; each seed is a corpus. The right readings come from another parser."""

import asyncio
import random
import re

import h11
import pytest

from toolkit.router.wire.client import EngineFailed
from toolkit.router.wire.reader import RequestReader

GOOD = [
    b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /b?x=y HTTP/1.1\r\nHost: h:80\r\nContent-Type: a/b\r\nContent-Length: 11\r\n\r\nhello world",
    b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-T: 1\r\n\r\n",
    b"POST /d HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
    b"HEAD /e HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"POST /f HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
]
# The reference closes after each HTTP/1.0 request, whatever the client wishes.
GOOD_1_0 = b"GET /g HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
SPICE = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"0",
    b"\xff",
    b"0\r\n\r\n",
    b"\r\n\r\n",
    b"Content-Length: 3\r\n",
    b"Content-Length: 0\r\n",
    b"content-length:5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n",
    b"transfer-encoding:\tChunked\r\n",
    b"Host: evil\r\n",
    b"X: " + b"y" * 20_000 + b"\r\n",
    b"X: y\r\n" * 300,
    b"GET http://evil/ HTTP/1.1\r\n",
    b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"7fffffff\r\n",
    b"-1\r\n",
    b";" + b"e" * 100,
]


def spoiled(rng, good):
    """Some requests in a row with a few faults in them."""
    data = bytearray(b"".join(rng.choice(good) for _ in range(rng.randrange(1, 4))))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            data[at:at] = rng.choice(SPICE)
        elif kind == 1:
            # After a line end, where a whole line makes most sense.
            ends = [place + 2 for place in range(len(data) - 1) if data[place : place + 2] == b"\r\n"]
            at = rng.choice(ends) if ends else at
            data[at:at] = rng.choice(SPICE)
        elif kind == 2:
            del data[at : at + rng.choice([1, 2, 10])]
        elif kind == 3 and data:
            data[at % len(data)] = rng.randrange(256)
        else:
            data[at:at] = rng.randbytes(rng.choice([1, 5, 50]))
    return bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data)


def pieces(rng, data):
    while data:
        size = rng.choice([1, 7, 100, 10_000, len(data)])
        yield data[:size]
        data = data[size:]


def reference(data):
    """What h11, a strict parser, takes these bytes for: the requests before the first error.

    Two liberties are allowed: several blanks between the parts of a request line (RFC 9112, 3), and line ends
    of any kind before it (RFC 9112, 2.2).
    """
    data = re.sub(rb"^([A-Z]+) +(/\S*) +(HTTP/1\.[01]\r)$", rb"\1 \2 \3", data, flags=re.MULTILINE)
    seen = []
    while data := data.lstrip(b"\r\n"):
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=16384)
        connection.receive_data(data)
        try:
            request, body = connection.next_event(), b""
            if request is h11.NEED_DATA:
                break
            while (event := connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.EndOfMessage):
                    break
                body += bytes(event.data)
            else:
                break
        except h11.RemoteProtocolError:
            break
        seen.append((request.method.decode(), request.target, body))
        if connection.their_state is h11.MUST_CLOSE:
            break
        data = connection.trailing_data[0]
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_no_request_is_read_differently_than_by_a_strict_parser(seed):
    rng = random.Random(seed)
    accepted = 0
    for _ in range(300):
        data = spoiled(rng, GOOD)
        reader = RequestReader(1 << 20, 16384, "")
        seen = []
        for piece in pieces(rng, data):
            reader.feed(piece)
            while reader.requests:
                request = reader.requests.popleft()
                target = request.path.encode() + (b"?" + request.query if request.query else b"")
                seen.append((request.method, target, request.body))
                reader.feed(b"")
        accepted += len(seen)
        # It may refuse what h11 takes (line feeds alone, folded fields), and never the other way round.
        assert seen == reference(data)[: len(seen)], data
        assert reader.refusal is None or 400 <= reader.refusal.status < 500
    assert accepted > 100


async def attack(rng, served):
    """One hostile connection; returns everything it was sent."""
    wire = await served.connect()
    try:
        for piece in pieces(rng, spoiled(rng, [*GOOD, GOOD_1_0])):
            wire.send(piece)
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        end = rng.randrange(4)
        if end == 0:
            wire.reset()
            return b""
        if end == 1:
            wire.leave()
            return b""
        if end == 2:
            wire.half_close()
        # Otherwise it waits for the server's patience to end.
        return await wire.rest()
    except ConnectionError:
        return b""
    finally:
        wire.leave()


@pytest.mark.parametrize("seed", range(4))
def test_hostile_bytes_get_a_4xx_or_silence_and_disturb_nobody(run, seed, serving, until):
    async def main():
        rng = random.Random(seed)

        async def handler(request, reply):
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                reply.whole(200, [], request.body)
            else:
                reply.on_gone = reply.abort
                reply.start(200, [])
                reply.write(request.body)
                await asyncio.sleep(0)
                reply.end()

        async with serving(
            handler, header_timeout_s=0.1, body_stall_s=0.1, keepalive_s=0.1, max_body_bytes=1000
        ) as served:
            answers = await asyncio.gather(*(attack(random.Random(rng.random()), served) for _ in range(150)))
            statuses = {
                line.split()[1]
                for answer in answers
                for line in answer.split(b"\r\n")
                if line[:9] == b"HTTP/1.1 "
            }
            assert statuses <= {b"100", b"200", b"400", b"408", b"413", b"414", b"417", b"431"}
            assert {b"200", b"400", b"408"} <= statuses
            wire = await served.connect()
            wire.send(GOOD[0])
            assert (await wire.answer())[0] == 200
            wire.leave()
            await until(lambda: served.server.connections == 0)

    run(main())


@pytest.mark.parametrize("seed", range(4))
def test_a_mad_engine_fails_and_leaves_no_connection(run, seed, engine, until):
    good = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
    ]

    async def main():
        rng = random.Random(seed)
        outcomes = set()

        async def script(fake, wire):
            await fake.request(wire)
            data = bytearray(rng.choice(good))
            for _ in range(rng.randrange(3)):
                at = rng.randrange(len(data) + 1)
                if rng.random() < 0.5:
                    data[at:at] = rng.choice(SPICE)
                else:
                    del data[at : at + rng.choice([1, 2, 10])]
            for piece in pieces(rng, bytes(data)):
                await wire.send_all(piece)
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                wire.reset()

        async with engine(script, idle_s=0.1) as (_, leg, client):

            async def ask():
                try:
                    if rng.random() < 0.5:
                        answer = await client.whole(leg, "POST", "/p", b"", b"{}", 5.0)
                        outcomes.add(answer.status)
                    else:
                        stream = await client.open(leg, "/p", b"", b"{}", 5.0)
                        await stream.relay(lambda _: None)
                        outcomes.add(stream.status)
                except EngineFailed:
                    outcomes.add("failed")

            await asyncio.gather(*(ask() for _ in range(150)))
            await until(lambda: client.connections == 0)
        assert {200, 204, "failed"} <= outcomes

    run(main())
