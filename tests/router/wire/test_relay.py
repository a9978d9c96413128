"""Server and client together: an engine's stream on its way to a client, as the router relays it."""

import asyncio

import pytest

from toolkit.router.wire.client import EngineFailed
from toolkit.router.wire.headers import to_client, to_engine

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nX-A: b\r\nContent-Length: 2\r\n\r\n{}"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def relay_to(client, leg, log):
    async def handler(request, reply):
        try:
            headers = to_engine(request.headers, "id", None)
            stream = await client.open(leg, request.path, headers, request.body, 5.0)
            reply.on_gone, reply.on_pause, reply.on_resume = stream.abort, stream.pause, stream.resume
            reply.start(stream.status, to_client(stream.headers))
            await stream.relay(reply.write)
            reply.end()
        except EngineFailed as failure:
            log.append(failure.why)
            reply.abort()

    return handler


@pytest.mark.parametrize("size", [1, 300, 70_000])
def test_every_byte_arrives_in_order(run, engine, serving, size):
    async def main():
        parts = [bytes([65 + number]) * size for number in range(26)]

        async def script(fake, wire):
            while True:
                assert await fake.request(wire) == b"{}"
                wire.send(STREAM)
                for part in parts:
                    await wire.send_all(chunk(part))
                    await asyncio.sleep(0)
                wire.send(b"0\r\n\r\n")

        async with engine(script) as (fake, leg, client), serving(relay_to(client, leg, [])) as served:
            wires = [await served.connect() for _ in range(8)]
            for wire in wires:
                wire.send(POST)
            for wire in wires:
                status, headers, body = await wire.answer()
                assert (status, headers["content-type"]) == (200, "text/event-stream")
                assert body == b"".join(parts)
            assert b"x-a: b\r\n" in fake.heads[0]

    run(main())


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_client_that_reads_slowly_slows_its_engine_and_no_other(
    run, engine, serving, certificate, encrypted
):
    async def main():
        sent = 0

        async def script(fake, wire):
            nonlocal sent
            await fake.request(wire)
            wire.send(STREAM)
            if len(fake.heads) > 1:
                wire.send(chunk(b"quick") + b"0\r\n\r\n")
                await fake.until_left(wire)
            while sent < 64 << 20:
                await wire.send_all(chunk(b"x" * 65_536))
                sent += 65_536
            wire.send(b"0\r\n\r\n")
            await fake.until_left(wire)

        tls, trust = certificate if encrypted else (None, None)
        async with (
            engine(script, tls=tls, tls_trust=trust) as (_, leg, client),
            serving(relay_to(client, leg, []), tls=tls, trust=trust) as served,
        ):
            slow = await served.connect()
            slow.send(POST)
            assert (await slow.head())[0] == 200
            last = -1
            while last != sent:
                last = sent
                await asyncio.sleep(0.1)
            # Kernel buffers and ours are full, and far from everything.
            assert sent < 32 << 20
            quick = await served.connect()
            quick.send(POST)
            assert (await quick.answer())[2] == b"quick"
            received, tail = 0, b""
            while not tail.endswith(b"0\r\n\r\n"):
                tail = tail[-5:] + (piece := await slow.reader.read(1 << 20))
                received += piece.count(b"x")
            assert received == 64 << 20

    run(main())


@pytest.mark.parametrize("how", ["leave", "reset"])
def test_a_client_that_leaves_takes_its_engine_along(run, engine, serving, until, how):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            wire.send(STREAM + chunk(b"x"))
            await fake.until_left(wire)

        log = []
        async with engine(script) as (fake, leg, client), serving(relay_to(client, leg, log)) as served:
            wire = await served.connect()
            wire.send(POST)
            await wire.head()
            getattr(wire, how)()
            await until(lambda: fake.left == 1 and log == ["was left"])
            await until(lambda: client.connections == 0)

    run(main())


def test_an_engine_that_breaks_cuts_the_client(run, engine, serving):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            await wire.send_all(STREAM + chunk(b"begun"))
            await asyncio.sleep(0.02)

        log = []
        async with engine(script) as (_, leg, client), serving(relay_to(client, leg, log)) as served:
            wire = await served.connect()
            wire.send(POST)
            await wire.head()
            assert await wire.rest() == b"5\r\nbegun\r\n"
            assert log == ["closed the connection"]

    run(main())
