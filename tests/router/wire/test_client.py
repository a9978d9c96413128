"""The client against raw engines: every way an answer comes, breaks off or does not come at all."""

import asyncio
import resource
import socket
import ssl

import pytest

from toolkit.router.wire.client import EngineFailed, EngineLeft

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIELDS = b"x-a: b\r\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def answering(*answers):
    """A script: each request of a connection gets the next answer, then nothing."""

    async def script(fake, wire):
        for answer in answers:
            await fake.request(wire)
            wire.send(answer)
        await fake.until_left(wire)

    return script


async def always(fake, wire):
    while True:
        await fake.request(wire)
        wire.send(OK)


async def silent(fake, wire):
    await fake.request(wire)
    await fake.until_left(wire)


def ask(client, leg, body=b"{}", timeout_s=5.0, method="POST", path="/p"):
    return client.whole(leg, method, path, FIELDS, body, timeout_s)


async def relayed(stream):
    pieces = []
    await stream.relay(pieces.append)
    return b"".join(pieces)


# Requests.


def test_a_request_is_written_as_given(run, engine):
    async def main():
        async with engine(always) as (fake, leg, client):
            answer = await ask(client, leg, [b"{", b"1" * 20_000, b"}"], path="/v1/x?a=b")
            assert (answer.status, answer.body) == (200, b"ok")
            assert answer.headers == [(b"content-type", b"application/json"), (b"content-length", b"2")]
            await ask(client, leg, b"", path="/e")
            await ask(client, leg, None, path="/n")
            await ask(client, leg, None, method="GET", path="/g")
            host = b"host: %b\r\n" % leg.origin.host_header
            assert fake.heads == [
                b"POST /v1/x?a=b HTTP/1.1\r\n" + host + FIELDS + b"content-length: 20002\r\n\r\n",
                b"POST /e HTTP/1.1\r\n" + host + FIELDS + b"content-length: 0\r\n\r\n",
                b"POST /n HTTP/1.1\r\n" + host + FIELDS + b"content-length: 0\r\n\r\n",
                b"GET /g HTTP/1.1\r\n" + host + FIELDS + b"\r\n",
            ]

    run(main())


def test_the_origins_base_comes_before_every_path(run, leg_of, engine):
    async def main():
        async with engine(always) as (fake, leg, client):
            await ask(client, leg_of(leg.url + "/base/"))
            assert fake.heads[0].startswith(b"POST /base/p HTTP/1.1\r\n")

    run(main())


@pytest.mark.parametrize("size", [10, 100_000, 8 << 20])
@pytest.mark.parametrize("count", [1, 7])
def test_bodies_of_any_size_arrive(run, size, count, engine):
    async def main():
        bodies = []

        async def script(fake, wire):
            bodies.append(await fake.request(wire))
            wire.send(OK)

        pieces = [bytes([number]) * (size // count) for number in range(count)]
        async with engine(script) as (_, leg, client):
            await ask(client, leg, pieces if count > 1 else pieces[0])
        assert bodies == [b"".join(pieces)]

    run(main())


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_engine_is_reached_over_ipv6(run, engine):
    async def main():
        async with engine(always, host="::1") as (fake, leg, client):
            assert (await ask(client, leg)).body == b"ok"
            assert b"host: [::1]:%d\r\n" % leg.origin.port in fake.heads[0]

    run(main())


def test_an_engine_is_reached_by_name(run, leg_of, engine):
    async def main():
        async with engine(always) as (_, leg, client):
            assert (await ask(client, leg_of(f"http://localhost:{leg.origin.port}"))).body == b"ok"

    run(main())


def test_an_engine_is_reached_over_tls_if_its_certificate_is_trusted(run, certificate, engine):
    async def main():
        server, trust = certificate
        async with engine(always, tls=server, tls_trust=trust) as (fake, leg, client):
            for _ in range(2):
                assert (await ask(client, leg, [b"x" * 3_000_000, b"y"])).body == b"ok"
            told = []
            stream = await client.open(leg, "/p", FIELDS, b"z" * 3_000_000, 5.0, lambda: told.append(1))
            assert (await stream.read(10), told, len(fake.wires)) == (b"ok", [1], 1)
        async with engine(always, tls=server, tls_trust=ssl.create_default_context()) as (_, leg, client):
            with pytest.raises(EngineFailed, match="certificate is not trusted") as caught:
                await ask(client, leg)
            assert (caught.value.sent, leg.ejected) == (False, 1)

    run(main())


# Answers.

WHOLE = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "chunks": (STREAM + chunk(b"hel") + chunk(b"lo") + b"0\r\n\r\n", b"hello"),
    "chunks with a trailer": (STREAM + chunk(b"hello") + b"0\r\nX-Sum: 1\r\n\r\n", b"hello"),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "after interim answers": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK,
        b"ok",
    ),
}


@pytest.mark.parametrize(("data", "body"), WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("step", [1, 1000])
def test_an_answer_is_read_and_its_connection_kept(run, data, body, step, engine):
    async def main():
        async def script(fake, wire):
            for _ in range(3):
                await fake.request(wire)
                for at in range(0, len(data), step):
                    await wire.send_all(data[at : at + step])
                    if step == 1:
                        await asyncio.sleep(0)

        async with engine(script) as (fake, leg, client):
            answers = [await ask(client, leg)]
            stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
            answers.append(await stream.read(100))
            stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
            answers.append(await relayed(stream))
            assert [answers[0].body, *answers[1:]] == [body] * 3
            names = {name for name, _ in answers[0].headers}
            assert not names & {b"x-sum", b"link"}
            assert stream.headers == answers[0].headers
            assert len(fake.wires) == 1

    run(main())


def test_a_body_without_length_ends_with_the_connection(run, engine):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            await wire.send_all(b"HTTP/1.1 200 OK\r\n\r\nhel")
            await asyncio.sleep(0.01)
            wire.send(b"lo")

        async with engine(script) as (fake, leg, client):
            assert (await ask(client, leg)).body == b"hello"
            assert await (await client.open(leg, "/p", FIELDS, b"", 5.0)).read(10) == b"hello"
            assert len(fake.wires) == 2

    run(main())


def test_connection_close_is_obeyed(run, engine, until):
    async def main():
        closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        async with engine(answering(closing)) as (fake, leg, client):
            for _ in range(2):
                assert (await ask(client, leg)).body == b"ok"
            assert len(fake.wires) == 2
            await until(lambda: client.connections == 0)

    run(main())


def test_head_waits_for_no_body(run, engine):
    async def main():
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        async with engine(answering(head)) as (_, leg, client):
            answer = await ask(client, leg, None, method="HEAD")
            assert (answer.status, answer.body, answer.headers) == (200, b"", [(b"content-length", b"5")])

    run(main())


BROKEN = {
    "no HTTP": b"nonsense\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "length and coding": STREAM.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n") + b"0\r\n\r\n",
    "bad chunk": STREAM + b"zz\r\n",
    "two answers": OK + OK,
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "endless headers": b"HTTP/1.1 200 OK\r\nX: " + b"y" * (2 << 20),
    "short by length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
    "short by chunks": STREAM + chunk(b"hel"),
    "head only": b"HTTP/1.1 200 OK\r\nContent-Le",
    "nothing": b"",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_a_failure_and_is_not_asked_for_again(run, data, engine, until):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            wire.send(data)

        async with engine(script) as (fake, leg, client):
            with pytest.raises(EngineFailed) as caught:
                await ask(client, leg)
            assert (caught.value.leg, caught.value.sent) == (leg, True)
            assert str(caught.value).startswith(f"decode {leg.url} ")
            with pytest.raises(EngineFailed):
                await (await client.open(leg, "/p", FIELDS, b"", 5.0)).read(100)
            assert (len(fake.heads), leg.ejected) == (2, 0)
            await until(lambda: client.connections == 0)

    run(main())


def test_a_reset_in_the_middle_is_a_failure(run, engine):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            await wire.send_all(STREAM + chunk(b"hel"))
            await asyncio.sleep(0.02)
            wire.reset()

        async with engine(script) as (_, leg, client):
            stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
            pieces = []
            with pytest.raises(EngineFailed, match="the connection"):
                await stream.relay(pieces.append)
            assert pieces == [b"hel"]

    run(main())


def test_an_answer_has_a_limit(run, engine):
    async def main():
        large = b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101
        async with engine(answering(large)) as (_, leg, client):
            with pytest.raises(EngineFailed, match="more than 100 bytes") as caught:
                await (await client.open(leg, "/p", FIELDS, b"", 5.0)).read(100)
            assert caught.value.status == 200

    run(main())


def test_a_whole_answer_is_at_most_64_mib(run_once, engine, until):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            wire.send(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                await wire.send_all(b"x" * (4 << 20))

        async with engine(script) as (fake, leg, client):
            with pytest.raises(EngineFailed, match="more than 67108864 bytes"):
                await ask(client, leg, timeout_s=15.0)
            await until(lambda: fake.left == 1)

    run_once(main())


# Connections.


def test_the_connection_used_last_is_used_next_and_there_is_no_limit(run, engine):
    async def main():
        used = []

        async def script(fake, wire):
            while True:
                await fake.request(wire)
                used.append(wire)
                wire.send(OK)

        async with engine(script) as (fake, leg, client):
            await asyncio.gather(*(ask(client, leg) for _ in range(60)))
            assert len(fake.wires) == client.connections == 60
            for _ in range(20):
                await ask(client, leg)
            assert len(fake.wires) == 60
            assert len(set(used[-20:])) == 1

    run(main())


def test_each_engine_has_connections_of_its_own(run, engine):
    async def main():
        async with engine(always) as (one, first, client), engine(always) as (other, second, unused):
            for leg in (first, second, first, second):
                assert (await ask(client, leg)).body == b"ok"
            assert (len(one.wires), len(other.wires)) == (1, 1)
            assert unused.connections == 0

    run(main())


def test_an_idle_connection_is_closed_after_a_while(run, engine, until):
    async def main():
        async with engine(always, idle_s=0.1) as (fake, leg, client):
            await ask(client, leg)
            assert client.connections == 1
            await until(lambda: client.connections == 0 and fake.left == 1)
            await ask(client, leg)
            assert len(fake.wires) == 2

    run(main())


def test_an_engine_that_closes_or_speaks_unasked_is_not_reused(run, engine, until):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            await wire.send_all(OK)
            if len(fake.wires) == 1:
                await asyncio.sleep(0.02)
                wire.send(OK)
                await fake.until_left(wire)

        async with engine(script, idle_s=60.0) as (fake, leg, client):
            for number in range(1, 4):
                await ask(client, leg)
                await until(lambda: client.connections == 0)
                assert len(fake.wires) == number

    run(main())


@pytest.mark.parametrize("how", ["leave", "reset"])
@pytest.mark.parametrize("opened", [False, True])
def test_a_stale_connection_is_replaced_once(run, how, opened, engine):
    """The engine closes an idle connection while the next request is on its way."""

    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            wire.send(OK)
            await fake.request(wire)
            if len(fake.wires) == 1:
                getattr(wire, how)()
            else:
                wire.send(OK)

        async with engine(script) as (fake, leg, client):
            await ask(client, leg)
            told = []
            if opened:
                stream = await client.open(leg, "/p", FIELDS, [b"a", b"b"], 5.0, lambda: told.append(1))
                body = await stream.read(10)
            else:
                body = (await ask(client, leg)).body
            assert body == b"ok"
            assert (len(fake.wires), len(fake.heads)) == (2, 3)
            assert told == [1] * opened

    run(main())


def test_a_request_is_not_sent_again_once_a_byte_came_or_on_a_fresh_connection(run, engine):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            if len(fake.heads) == 1:
                wire.send(OK)
                await fake.request(wire)
                wire.send(b"H")

        async with engine(script) as (fake, leg, client):
            await ask(client, leg)
            with pytest.raises(EngineFailed):
                await ask(client, leg)
            assert len(fake.heads) == 2
            with pytest.raises(EngineFailed):
                await ask(client, leg)
            assert len(fake.heads) == 3

    run(main())


def test_an_engine_that_answers_before_it_was_told_everything_is_not_reused(run, engine, until):
    async def main():
        async def script(fake, wire):
            await wire.reader.readuntil(b"\r\n\r\n")
            fake.heads.append(b"")
            wire.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            await asyncio.Event().wait()

        async with engine(script) as (fake, leg, client):
            for number in (1, 2):
                assert (await ask(client, leg, b"x" * (32 << 20))).status == 413
                assert len(fake.wires) == number
            await until(lambda: client.connections == 0)

    run(main())


@pytest.mark.parametrize("how", ["leave", "reset"])
def test_an_engine_that_closes_at_once_is_a_failure(run, engine, until, how):
    async def main():
        async def script(_, wire):
            getattr(wire, how)()

        async with engine(script) as (_, leg, client):
            for _ in range(20):
                with pytest.raises(EngineFailed):
                    await ask(client, leg)
            await until(lambda: client.connections == 0)

    run(main())


# Time.


def test_an_engine_that_refuses_is_ejected(run, leg_of, engine):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        async with engine(always) as (_, _leg, client):
            leg = leg_of(f"http://127.0.0.1:{port}")
            with pytest.raises(EngineFailed, match="cannot be reached") as caught:
                await ask(client, leg)
            with pytest.raises(EngineFailed, match="cannot be reached"):
                await client.open(leg, "/p", FIELDS, b"", 5.0)
            assert (caught.value.sent, leg.ejected) == (False, 2)

    run(main())


def test_an_engine_that_does_not_accept_is_ejected(run, leg_of, engine):
    async def main():
        with socket.socket() as deaf, socket.socket() as waiting:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            address = deaf.getsockname()
            # The queue of one is full; what comes now is not answered.
            waiting.connect(address)
            async with engine(always, connect_timeout_s=0.1) as (_, _leg, client):
                leg = leg_of(f"http://127.0.0.1:{address[1]}")
                with pytest.raises(EngineFailed, match="cannot be reached .no connection in time.") as caught:
                    await ask(client, leg)
                assert (caught.value.sent, leg.ejected, client.connections) == (False, 1, 0)

    run(main())


def test_a_name_that_does_not_resolve_is_told(run, leg_of, engine):
    async def main():
        async with engine(always) as (_, _leg, client):
            leg = leg_of("http://engine.invalid:1")
            with pytest.raises(EngineFailed, match="its name does not resolve"):
                await ask(client, leg)
            assert leg.ejected == 1

    run(main())


def test_too_many_open_files_are_not_the_engines_fault(run, engine):
    async def main():
        async with engine(always) as (_, leg, client):
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket() as highest:
                lowest_free = highest.fileno()
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
            try:
                with pytest.raises(EngineFailed, match="too many open files") as caught:
                    await ask(client, leg)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (caught.value.sent, leg.ejected) == (False, 0)

    run(main())


def test_a_whole_answer_is_awaited_only_so_long(run, engine, until):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            wire.send(STREAM)
            while True:
                await wire.send_all(chunk(b"x"))
                await asyncio.sleep(0.01)

        for does in (silent, script):
            async with engine(does) as (fake, leg, client):
                with pytest.raises(EngineFailed, match="did not answer in time") as caught:
                    await ask(client, leg, timeout_s=0.15)
                assert (caught.value.sent, leg.ejected) == (True, 0)
                await until(lambda: fake.left == 1)

    run(main())


def test_a_stream_may_take_long_but_not_be_silent(run_once, engine, until):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            wire.send(STREAM)
            for _ in range(10):
                await asyncio.sleep(0.1)
                await wire.send_all(chunk(b"x"))
            await fake.until_left(wire)

        async with engine(script) as (fake, leg, client):
            stream = await client.open(leg, "/p", FIELDS, b"", 0.6)
            pieces = []
            with pytest.raises(EngineFailed, match="was silent for 0.6 s"):
                await stream.relay(pieces.append)
            assert pieces == [b"x"] * 10
            await until(lambda: fake.left == 1)
        async with engine(silent) as (fake, leg, client):
            with pytest.raises(EngineFailed, match="did not answer in time"):
                await client.open(leg, "/p", FIELDS, b"", 0.1)
            await until(lambda: fake.left == 1)

    run_once(main())


def test_an_engine_that_is_paused_is_not_called_silent(run, engine):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            await wire.send_all(STREAM)
            await asyncio.sleep(0.05)
            await wire.send_all(chunk(b"x"))
            await asyncio.sleep(0.5)
            wire.send(chunk(b"y") + b"0\r\n\r\n")

        async with engine(script) as (_, leg, client):
            stream = await client.open(leg, "/p", FIELDS, b"", 0.2)
            pieces = []

            def take(piece):
                pieces.append(piece)
                if piece == b"x":
                    stream.pause()

            relaying = asyncio.create_task(stream.relay(take))
            await asyncio.sleep(0.6)
            assert pieces == [b"x"]
            stream.resume()
            await relaying
            assert pieces == [b"x", b"y"]

    run(main())


# Leaving, and being told.


def test_abort_is_seen_by_the_engine_and_told_to_who_waits(run, engine, until):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            wire.send(STREAM + chunk(b"x"))
            await fake.until_left(wire)

        async with engine(script) as (fake, leg, client):
            stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
            relaying = asyncio.create_task(stream.relay(lambda _: None))
            await asyncio.sleep(0.01)
            stream.abort()
            stream.abort()
            with pytest.raises(EngineLeft):
                await relaying
            stream.pause()
            stream.resume()
            await until(lambda: fake.left == 1)
            # Also when it is read afterwards only, or never.
            stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
            stream.abort()
            with pytest.raises(EngineLeft):
                await stream.read(10)
            (await client.open(leg, "/p", FIELDS, b"", 5.0)).abort()
            await until(lambda: fake.left == 3)

    run(main())


def test_a_sink_may_abort_and_may_fail(run, engine, until):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            wire.send(STREAM + chunk(b"x"))
            while True:
                await wire.send_all(chunk(b"x"))
                await asyncio.sleep(0.005)

        async with engine(script) as (fake, leg, client):
            stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
            with pytest.raises(EngineLeft):
                await stream.relay(lambda _: stream.abort())

            def fail(_):
                raise KeyError("sink")

            for wait in (0.0, 0.05):
                stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
                await asyncio.sleep(wait)
                with pytest.raises(KeyError, match="sink"):
                    await stream.relay(fail)
            await until(lambda: fake.left == 3 and client.connections == 0)

    run(main())


def test_a_cancelled_wait_closes_the_connection(run, engine, until):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            if b"/stream" in fake.heads[-1]:
                wire.send(STREAM)
            await fake.until_left(wire)

        async with engine(script) as (fake, leg, client):

            async def relay():
                await (await client.open(leg, "/stream", FIELDS, b"", 5.0)).relay(lambda _: None)

            for number, wait in enumerate(
                (ask(client, leg), client.open(leg, "/p", FIELDS, b"", 5.0), relay()), 1
            ):
                task = asyncio.create_task(wait)
                await until(lambda number=number: len(fake.wires) == number)
                await asyncio.sleep(0.02)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(lambda number=number: fake.left == number)
            assert client.connections == 0

    run(main())


def test_a_cancelled_connect_leaves_nothing(run, engine, until):
    async def main():
        async with engine(always, idle_s=0.1) as (fake, leg, client):
            for wait in range(8):
                task = asyncio.create_task(ask(client, leg))
                for _ in range(wait):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                await until(lambda: client.connections == 0)
            await until(lambda: fake.left == len(fake.wires))

    run(main())


def test_on_sent_comes_when_the_whole_request_is_on_its_way(run, engine, until):
    async def main():
        go, bodies = asyncio.Event(), []

        async def script(fake, wire):
            await go.wait()
            bodies.append(await fake.request(wire))
            await fake.until_left(wire)

        async with engine(script) as (fake, leg, client):
            told = []
            small = asyncio.create_task(
                client.open(leg, "/p", FIELDS, b"x", 5.0, lambda: told.append("small"))
            )
            await until(lambda: told == ["small"])
            body = b"x" * (32 << 20)
            large = asyncio.create_task(
                client.open(leg, "/p", FIELDS, [body], 5.0, lambda: told.append("large"))
            )
            await until(lambda: len(fake.wires) == 2)
            await asyncio.sleep(0.05)
            # Neither the engine nor the operating system has taken it all.
            assert told == ["small"]
            go.set()
            await until(lambda: told == ["small", "large"])
            # From now on the engine sees it even if its client leaves.
            for task in (small, large):
                task.cancel()
            await until(lambda: fake.left == 2)
            assert sorted(map(len, bodies)) == [1, 32 << 20]

    run(main())


def test_pause_stops_the_engine(run, engine, until):
    async def main():
        sent = 0

        async def script(fake, wire):
            nonlocal sent
            await fake.request(wire)
            wire.send(STREAM)
            while True:
                await wire.send_all(chunk(b"x" * 10_000))
                sent += 10_000

        async with engine(script) as (_, leg, client):
            stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
            taken = 0

            def take(piece):
                nonlocal taken
                taken += len(piece)

            async def standstill():
                last = -1
                while last != sent:
                    last = sent
                    await asyncio.sleep(0.05)

            # Nobody takes anything yet: the engine is not read on for ever.
            await standstill()
            relaying = asyncio.create_task(stream.relay(take))
            await until(lambda: taken > 30 << 20)
            stream.pause()
            before = taken
            await standstill()
            assert taken == before
            stream.resume()
            await until(lambda: taken > before)
            stream.abort()
            with pytest.raises(EngineLeft):
                await relaying

    run(main())


def test_the_last_piece_is_known_as_such(run, engine):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            await wire.send_all(STREAM + chunk(b"a"))
            await asyncio.sleep(0.02)
            await wire.send_all(chunk(b"b"))
            await asyncio.sleep(0.02)
            wire.send(chunk(b"c") + chunk(b"d") + b"0\r\n\r\n")
            await fake.request(wire)
            wire.send(OK)

        async with engine(script) as (_, leg, client):
            for expected in ([(b"a", False), (b"b", False), (b"cd", True)], [(b"ok", True)]):
                stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
                seen = []
                await stream.relay(lambda piece, s=stream, seen=seen: seen.append((piece, s.complete)))
                assert seen == expected

    run(main())


def test_close_ends_everything(run, engine, until):
    async def main():
        async def script(fake, wire):
            await fake.request(wire)
            wire.send(STREAM)
            await fake.until_left(wire)

        async with engine(script) as (fake, leg, client):
            stream = await client.open(leg, "/p", FIELDS, b"", 5.0)
            relaying = asyncio.create_task(stream.relay(lambda _: None))
            await asyncio.sleep(0)
            client.close()
            with pytest.raises(EngineLeft):
                await relaying
            await until(lambda: client.connections == 0 and fake.left == 1)

    run(main())
