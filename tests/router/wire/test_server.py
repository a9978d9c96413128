"""The server over real sockets: framing of answers, connections, refusals, timeouts, the end."""

import asyncio
import logging

import orjson
import pytest

HOST = b"Host: h\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
JSON = [(b"content-type", b"application/json")]


def post(body, fields=b""):
    return b"POST /p HTTP/1.1\r\n" + HOST + fields + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def echo(request, reply):
    """Answers with what was asked."""
    reply.whole(200, JSON, b"%b %b %b" % (request.method.encode(), request.path.encode(), request.body))


class Handler:
    """Keeps what it is given; `go` lets it answer."""

    def __init__(self):
        self.requests = []
        self.replies = []
        self.gone = 0
        self.go = asyncio.Event()

    async def __call__(self, request, reply):
        self.requests.append(request)
        self.replies.append(reply)
        reply.on_gone = self.count
        await self.go.wait()
        if not reply.gone:
            reply.whole(200, [], request.path.encode())

    def count(self):
        self.gone += 1


def error_of(answer):
    """Status, message, and whether the connection closes, of a refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    error = orjson.loads(body)["error"]
    status = int(head.split()[1])
    assert error["code"] == status
    assert b"content-type: application/json" in head
    assert b"\r\nconnection: close\r\n" in head + b"\r\n"
    return status, error["message"]


# Framing of answers.


def test_a_connection_carries_request_after_request(run, serving):
    async def main():
        async with serving(echo) as served:
            wire = await served.connect()
            for number in range(5):
                wire.send(post(b"%d" % number))
                status, headers, body = await wire.answer()
                assert (status, body) == (200, b"POST /p %d" % number)
                assert headers["content-type"] == "application/json"
                assert headers["date"].endswith("gmt")
                assert "connection" not in headers
            assert served.server.connections == 1

    run(main())


def test_a_large_body_arrives_whole_in_both_directions(run, serving):
    async def main():
        async with serving(echo) as served:
            wire = await served.connect(limit=1 << 22)
            body = bytes(range(256)) * 4000
            sizes = [body[at : at + 7000] for at in range(0, len(body), 7000)]
            chunked = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in sizes) + b"0\r\n\r\n"
            for request in (
                post(body),
                b"POST /p HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
            ):
                wire.send(request)
                assert (await wire.answer())[2] == b"POST /p " + body

    run(main())


def test_a_stream_is_framed_in_chunks(run, serving):
    async def handler(_, reply):
        reply.start(200, [(b"content-type", b"text/event-stream")])
        reply.write(b"one")
        reply.write(b"")
        await asyncio.sleep(0)
        reply.write(b"two" * 10_000)
        await asyncio.sleep(0.01)
        reply.write(b"three")
        reply.end(b"four")
        assert (reply.started, reply.ended, reply.gone) == (True, True, False)

    async def main():
        async with serving(handler) as served:
            wire = await served.connect()
            for _ in range(2):
                wire.send(GET)
                status, headers, body = await wire.answer()
                assert (status, headers["transfer-encoding"]) == (200, "chunked")
                assert body == b"one" + b"two" * 10_000 + b"threefour"

    run(main())


def test_the_head_and_the_first_piece_are_sent_at_once_and_together(run, serving):
    async def main():
        go = asyncio.Event()

        async def handler(_, reply):
            reply.start(200, [])
            reply.write(b"first")
            await go.wait()
            reply.end()

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            sent = await wire.reader.read(65536)
            assert sent.startswith(b"HTTP/1.1 200 OK\r\n")
            assert sent.endswith(b"\r\n\r\n5\r\nfirst\r\n")
            go.set()
            assert await wire.reader.readexactly(5) == b"0\r\n\r\n"

    run(main())


def test_an_answer_without_a_body_has_its_head(run, serving):
    async def main():
        async def handler(_, reply):
            reply.start(200, [])
            reply.end()

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            assert (await wire.head())[0] == 200
            assert await wire.chunks() == b""

    run(main())


def test_an_announced_length_is_kept_or_the_connection_cut(run, caplog, serving):
    async def handler(request, reply):
        reply.start(200, [], length=5)
        reply.write(b"ab")
        if request.path == "/long":
            reply.write(b"cdef")
        reply.end(b"cde" if request.path == "/right" else b"")

    async def main():
        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(b"GET /right HTTP/1.1\r\n" + HOST + b"\r\n")
            assert (await wire.answer())[2] == b"abcde"
            for path in (b"/short", b"/long"):
                wire = await served.connect()
                wire.send(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
                assert not (await wire.rest()).endswith(b"cde")

    run(main())
    assert [record.message for record in caplog.records] == ["GET /long failed"]


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body(run, status, serving):
    async def handler(request, reply):
        if request.path == "/whole":
            reply.whole(status, [], b"")
        else:
            reply.start(status, [])
            reply.end()

    async def main():
        async with serving(handler) as served:
            wire = await served.connect()
            for path in (b"/whole", b"/stream"):
                wire.send(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
                seen, headers = await wire.head()
                assert seen == status
                assert not {"content-length", "transfer-encoding"} & set(headers)

    run(main())


def test_head_gets_the_headers_alone(run, serving):
    async def handler(request, reply):
        if request.path == "/whole":
            reply.whole(200, [], b"12345")
        else:
            reply.start(200, [], length=None if request.path == "/chunks" else 7)
            reply.write(b"1234567")
            reply.end()

    async def main():
        async with serving(handler) as served:
            wire = await served.connect()
            seen = []
            for path in (b"/whole", b"/chunks", b"/length"):
                wire.send(b"HEAD " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
                _, headers = await wire.head()
                seen.append(headers.get("content-length", headers.get("transfer-encoding")))
            assert seen == ["5", "chunked", "7"]
            wire.send(b"GET /whole HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
            assert (await wire.rest()).endswith(b"12345")

    run(main())


def test_http_1_0_gets_no_chunks(run, serving):
    async def handler(request, reply):
        if request.path == "/whole":
            reply.whole(200, [], b"12345")
        else:
            reply.start(200, [])
            reply.write(b"123")
            await asyncio.sleep(0)
            reply.write(b"45")
            reply.end()

    async def main():
        async with serving(handler) as served:
            for path, fields in ((b"/whole", b""), (b"/s", b""), (b"/s", b"Connection: keep-alive\r\n")):
                answer = await served.ask(b"GET " + path + b" HTTP/1.0\r\n" + fields + b"\r\n")
                head, _, body = answer.partition(b"\r\n\r\n")
                assert body == b"12345"
                assert b"chunked" not in head
                assert b"connection: close" in head
            wire = await served.connect()
            for _ in range(2):
                wire.send(b"GET /whole HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                _, headers, body = await wire.answer()
                assert (headers["connection"], body) == ("keep-alive", b"12345")

    run(main())


def test_connection_close_is_obeyed(run, serving):
    async def main():
        async with serving(echo) as served:
            answer = await served.ask(post(b"x", b"Connection: close\r\n") + GET)
            assert answer.count(b"HTTP/1.1") == 1
            assert b"connection: close" in answer

    run(main())


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb"])
def test_a_header_cannot_smuggle_another(run, caplog, value, serving):
    async def handler(_, reply):
        reply.whole(200, [(b"x-a", value)], b"")

    async def main():
        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            assert (await wire.answer())[0] == 500

    run(main())
    assert "line break" in caplog.text


def test_a_handler_may_cut_its_answer(run, serving):
    async def main():
        async def handler(_, reply):
            reply.on_gone = lambda: pytest.fail("it was not the client who left")
            reply.start(200, [])
            reply.write(b"begun")
            await asyncio.sleep(0.01)
            reply.abort()
            reply.write(b"dropped")
            reply.end()
            assert (reply.ended, reply.gone) == (True, False)

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            await wire.head()
            assert await wire.rest() == b"5\r\nbegun\r\n"

    run(main())


def test_an_answer_begins_once_and_ends_once(run, serving):
    async def main():
        seen = []

        def refused(call):
            try:
                call()
            except RuntimeError as error:
                seen.append(str(error))

        async def handler(_, reply):
            refused(lambda: reply.write(b"x"))
            refused(reply.end)
            reply.start(200, [])
            refused(lambda: reply.start(200, []))
            refused(lambda: reply.whole(200, [], b""))
            reply.end()
            refused(lambda: reply.write(b"x"))
            reply.end()
            reply.abort()

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            assert (await wire.answer())[2] == b""
        assert len(seen) == 5

    run(main())


# Handlers that fail.


def test_a_handler_that_is_cancelled_cuts_its_answer(run, serving):
    async def main():
        async def handler(_, reply):
            reply.start(200, [])
            reply.write(b"begun")
            await asyncio.sleep(0.01)
            raise asyncio.CancelledError

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            await wire.head()
            assert await wire.rest() == b"5\r\nbegun\r\n"

    run(main())


def test_a_failing_handler_is_a_500_or_a_cut_connection(run, caplog, serving):
    async def handler(request, reply):
        if request.path != "/early":
            reply.start(200, [])
            reply.write(b"begun")
            await asyncio.sleep(0.01)
        if request.path != "/forgets":
            raise KeyError("secret")

    async def main():
        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(b"GET /early HTTP/1.1\r\n" + HOST + b"\r\n")
            status, _, body = await wire.answer()
            assert (status, b"secret" in body) == (500, False)
            wire.send(b"GET /early HTTP/1.1\r\n" + HOST + b"\r\n")
            assert (await wire.answer())[0] == 500
            for path in (b"/late", b"/forgets"):
                wire = await served.connect()
                wire.send(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
                assert (await wire.head())[0] == 200
                assert await wire.rest() == b"5\r\nbegun\r\n"

    run(main())
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 4


# Requests in turn.


def test_pipelined_requests_are_answered_in_order_one_at_a_time(run, serving):
    async def main():
        running = []

        async def handler(request, reply):
            running.append(request.path)
            assert len(running) == 1
            await asyncio.sleep(0.001)
            running.remove(request.path)
            reply.whole(200, [], request.path.encode() + request.body)

        async with serving(handler) as served:
            wire = await served.connect()
            count = 200
            wire.send(b"".join(post(b"%d" % number) for number in range(count)))
            assert [(await wire.answer())[2] for _ in range(count)] == [b"/p%d" % n for n in range(count)]

    run(main())


def test_a_client_that_pipelines_without_end_is_not_read_on(run_once, serving):
    async def main():
        handler = Handler()
        async with serving(handler) as served:
            wire = await served.connect()
            one = post(b"x" * 1000)
            sent = 0

            async def flood():
                nonlocal sent
                while sent < 50_000:
                    await wire.send_all(one)
                    sent += 1

            flooding = asyncio.create_task(flood())
            last = -1
            while last != sent:
                last = sent
                await asyncio.sleep(0.1)
            assert sent < 50_000
            assert len(handler.requests) == 1
            flooding.cancel()
            handler.go.set()
            for _ in range(sent):
                assert (await wire.answer())[2] == b"/p"

    run_once(main())


def test_an_error_behind_a_running_request_waits_for_its_turn(run, serving, until):
    async def main():
        handler = Handler()
        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET + GET + b"nonsense\r\n\r\n" + GET)
            await until(lambda: handler.replies)
            handler.go.set()
            answers = (await wire.rest()).split(b"HTTP/1.1 ")[1:]
            assert [int(answer[:3]) for answer in answers] == [200, 200, 400]
            assert len(handler.requests) == 2

    run(main())


# Bodies.


def test_100_continue_is_said_when_the_body_is_wanted(run, serving):
    async def main():
        async with serving(echo) as served:
            wire = await served.connect()
            for _ in range(2):
                wire.send(
                    b"POST /p HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
                )
                assert await wire.line() == b"HTTP/1.1 100 Continue\r\n"
                assert await wire.line() == b"\r\n"
                wire.send(b"ab")
                assert (await wire.answer())[2] == b"POST /p ab"
            # A client that does not wait needs no word.
            wire.send(post(b"cd", b"Expect: 100-continue\r\n"))
            assert (await wire.answer())[2] == b"POST /p cd"

    run(main())


def test_100_continue_waits_behind_a_running_answer(run, serving, until):
    async def main():
        handler = Handler()
        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(
                GET + b"POST /p HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
            )
            await until(lambda: handler.requests)
            handler.go.set()
            assert (await wire.answer())[2] == b"/a"
            assert await wire.line() == b"HTTP/1.1 100 Continue\r\n"
            wire.send(b"ab")
            assert await wire.line() == b"\r\n"
            assert (await wire.answer())[2] == b"/p"

    run(main())


def test_a_body_that_is_announced_too_large_never_has_to_travel(run, serving):
    async def main():
        async with serving(echo, max_body_bytes=1000) as served:
            answer = await served.ask(
                b"POST /p HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n"
            )
            assert error_of(answer) == (413, "The request body is larger than 1000 bytes.")

    run(main())


@pytest.mark.parametrize("announced", [True, False])
def test_a_refusal_reaches_a_client_that_sends_on_and_reads_late(run, announced, serving):
    """Closing at once would reset the connection, and the answer with it."""
    size = 16 << 20

    async def main():
        async with serving(echo, max_body_bytes=1000) as served:
            wire = await served.connect()
            if announced:
                await wire.send_all(b"POST /p HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size)
            else:
                await wire.send_all(b"POST /p HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
                await wire.send_all(b"%x\r\n" % size)
            for _ in range(256):
                await wire.send_all(b"x" * (size // 256))
            assert error_of(await wire.rest())[0] == 413

    run(main())


# Timeouts. The limits are short; whoever keeps within them stays.


async def drip(wire, data):
    try:
        for byte in data:
            await wire.send_all(bytes([byte]))
            await asyncio.sleep(0.01)
    except ConnectionError:
        pass


def test_slow_headers_are_a_408(run, serving):
    async def main():
        async with serving(echo, header_timeout_s=0.1) as served:
            wire = await served.connect()
            wire.send(GET)
            await wire.answer()
            dripping = asyncio.create_task(
                drip(wire, b"GET /a HTTP/1.1\r\nHost: h\r\nX-Long: " + b"x" * 5000)
            )
            status, message = error_of(await wire.rest())
            assert (status, "headers" in message) == (408, True)
            dripping.cancel()

    run(main())


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 5000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1388\r\n"]
)
def test_a_slow_body_is_a_408(run, framing, serving):
    async def main():
        async with serving(echo, body_stall_s=0.1) as served:
            wire = await served.connect()
            wire.send(b"POST /p HTTP/1.1\r\n" + HOST + framing)
            dripping = asyncio.create_task(drip(wire, b"x" * 4999))
            status, message = error_of(await wire.rest())
            assert (status, "body" in message) == (408, True)
            dripping.cancel()

    run(main())


def test_a_body_may_take_long_if_it_keeps_coming(run_once, serving):
    async def main():
        async with serving(echo, body_stall_s=0.6) as served:
            wire = await served.connect(limit=1 << 20)
            wire.send(b"POST /p HTTP/1.1\r\n" + HOST + b"Content-Length: 20000\r\n\r\n")
            for _ in range(10):
                await wire.send_all(b"x" * 2000)
                await asyncio.sleep(0.1)
            assert (await wire.answer())[0] == 200

    run_once(main())


def test_an_idle_connection_is_closed_without_a_word(run, serving):
    async def main():
        async with serving(echo, keepalive_s=0.1) as served:
            fresh = await served.connect()
            used = await served.connect()
            used.send(GET)
            await used.answer()
            assert await fresh.rest() == b""
            assert await used.rest() == b""

    run(main())


def test_a_request_may_take_longer_than_any_of_these(run, serving):
    async def main():
        async def handler(_, reply):
            await asyncio.sleep(0.3)
            reply.whole(200, [], b"late")

        short = dict.fromkeys(("header_timeout_s", "body_stall_s", "keepalive_s", "stall_timeout_s"), 0.05)
        async with serving(handler, **short) as served:
            wire = await served.connect()
            wire.send(GET)
            assert (await wire.answer())[2] == b"late"

    run(main())


# Clients that leave.


@pytest.mark.parametrize("how", ["leave", "reset"])
def test_a_client_that_leaves_is_noticed_whatever_the_handler_waits_for(run, how, serving, until):
    async def main():
        handler = Handler()
        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            await until(lambda: handler.replies)
            getattr(wire, how)()
            await until(lambda: handler.gone)
            reply = handler.replies[0]
            assert (reply.gone, served.server.running) == (True, 1)
            await until(lambda: served.server.connections == 0)
            # From now on it says nothing, without complaint.
            reply.start(200, [])
            reply.write(b"x")
            reply.end()
            handler.go.set()
        assert handler.gone == 1

    run(main())


@pytest.mark.parametrize("how", ["leave", "reset", "half_close"])
def test_a_client_that_leaves_in_the_middle_of_a_stream_is_noticed(run, how, serving):
    async def main():
        replies = []
        left = asyncio.Event()

        async def handler(_, reply):
            replies.append(reply)
            reply.on_gone = left.set
            reply.start(200, [])
            reply.write(b"begun")
            await left.wait()
            assert reply.gone

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            await wire.head()
            getattr(wire, how)()
            await left.wait()

    run(main())


def test_a_client_that_has_left_before_the_handler_listens_is_told_of(run, serving):
    async def main():
        entered, listen, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handler(_, reply):
            entered.set()
            await listen.wait()
            reply.on_gone = told.set
            await told.wait()

        async with serving(handler) as served:
            for how in ("leave", "reset"):
                entered.clear(), listen.clear(), told.clear()
                wire = await served.connect()
                wire.send(GET)
                await entered.wait()
                getattr(wire, how)()
                await asyncio.sleep(0.05)
                listen.set()
                await told.wait()

    run(main())


def test_a_client_that_stalled_before_the_handler_listens_is_told_of(run, serving):
    async def main():
        told, replies = asyncio.Event(), []

        async def handler(_, reply):
            replies.append(reply)
            reply.start(200, [])
            while not reply.gone:
                reply.write(b"x" * 100_000)
                await asyncio.sleep(0.005)
            reply.on_gone = told.set
            await told.wait()

        async with serving(handler, stall_timeout_s=0.2) as served:
            wire = await served.connect()
            wire.send(GET)
            await told.wait()
            assert replies[0].gone

    run(main())


def test_what_fails_when_a_client_left_stays_within(run, caplog, serving, until):
    async def main():
        async def handler(_, reply):
            left = asyncio.Event()

            def fail():
                left.set()
                raise KeyError

            reply.on_gone = fail
            await left.wait()

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            await until(lambda: served.server.running)
            wire.leave()

    run(main())
    assert "when a client left" in caplog.text


def test_a_half_closed_client_still_gets_a_quick_answer(run, serving):
    """As `printf ... | nc` and some health checks ask."""

    async def main():
        async def handler(request, reply):
            await asyncio.sleep(0.02)
            reply.whole(200, [], request.path.encode())

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET + b"GET /b HTTP/1.1\r\n" + HOST + b"\r\n")
            wire.half_close()
            assert [(await wire.answer())[2] for _ in range(2)] == [b"/a", b"/b"]
            assert await wire.rest() == b""

    run(main())


def test_half_a_request_from_a_half_closed_client_is_refused(run, serving):
    async def main():
        async with serving(echo) as served:
            for part in (b"GET /a HTTP/1.1\r\nHo", post(b"abc")[:-1]):
                wire = await served.connect()
                wire.send(part)
                wire.half_close()
                assert error_of(await wire.rest())[0] == 400
            wire = await served.connect()
            wire.half_close()
            assert await wire.rest() == b""

    run(main())


# Clients that read slowly.


class Flood:
    """Streams without end while the client takes it."""

    def __init__(self):
        self.log = []
        self.written = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self.reply = None
        self.stop = False

    async def __call__(self, _, reply):
        self.reply = reply
        reply.on_pause = self.pause
        reply.on_resume = self.resume
        reply.on_gone = self.gone
        reply.start(200, [])
        while not (self.stop or reply.gone):
            reply.write(b"x" * 10_000)
            self.written += 10_000
            await self.writable.wait()
            await asyncio.sleep(0)
        reply.end()

    def pause(self):
        assert self.reply.paused
        self.log.append("pause")
        self.writable.clear()

    def resume(self):
        assert not self.reply.paused
        self.log.append("resume")
        self.writable.set()

    def gone(self):
        self.log.append("gone")
        self.writable.set()


def test_a_slow_reader_pauses_the_writer(run, serving, until):
    async def main():
        flood = Flood()
        async with serving(flood) as served:
            wire = await served.connect()
            wire.send(GET)
            await until(lambda: flood.log == ["pause"])
            written = flood.written
            await asyncio.sleep(0.05)
            assert flood.written == written
            await wire.head()
            while "resume" not in flood.log:
                await wire.reader.read(1 << 20)
            flood.stop = True
            while not (await wire.reader.read(1 << 20)).endswith(b"0\r\n\r\n"):
                pass
            assert "gone" not in flood.log

    run(main())


def test_a_client_that_reads_nothing_counts_as_gone(run, serving, until):
    async def main():
        flood = Flood()
        async with serving(flood, stall_timeout_s=0.3) as served:
            wire = await served.connect()
            wire.send(GET)
            await until(lambda: flood.log == ["pause", "gone"])
            assert flood.reply.gone
            await until(lambda: served.server.connections == 0)

    run(main())


def test_a_client_that_reads_little_does_not_count_as_gone(run_once, serving, until):
    async def main():
        flood = Flood()
        async with serving(flood, stall_timeout_s=0.8) as served:
            wire = await served.connect(limit=1024)
            wire.send(GET)
            await until(lambda: flood.log == ["pause"])
            for _ in range(12):
                # Enough that the kernel announces room again.
                for _ in range(20):
                    await wire.reader.read(1 << 16)
                await asyncio.sleep(0.1)
            assert "gone" not in flood.log
            wire.reset()

    run_once(main())


def test_a_large_answer_may_be_taken_in_small_portions(run_once, serving):
    async def main():
        size = 24 << 20

        async def handler(_, reply):
            reply.whole(200, [], b"x" * size)

        async with serving(handler, stall_timeout_s=0.5) as served:
            wire = await served.connect()
            wire.send(GET)
            await wire.head()
            left = size
            while left:
                await wire.reader.readexactly(portion := min(left, 1 << 20))
                left -= portion
                await asyncio.sleep(0.05)
            assert served.server.connections == 1

    run_once(main())


def test_an_answer_that_is_never_taken_does_not_keep_its_connection(run_once, serving, until):
    async def main():
        async def handler(_, reply):
            reply.whole(200, [], b"x" * (32 << 20))

        async with serving(handler, stall_timeout_s=0.2) as served:
            for fields in (b"", b"Connection: close\r\n"):
                wire = await served.connect()
                wire.send(b"GET /a HTTP/1.1\r\n" + HOST + fields + b"\r\n")
                await until(lambda: served.server.connections == 1)
                await until(lambda: served.server.connections == 0)
                wire.reset()

    run_once(main())


def test_the_next_request_waits_until_the_answer_before_is_taken(run, serving, until):
    async def main():
        begun = []

        async def handler(request, reply):
            begun.append(request.path)
            reply.whole(200, [], b"x" * (8 << 20))

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET * 3)
            await until(lambda: begun)
            await asyncio.sleep(0.05)
            assert len(begun) == 1
            for _ in range(3):
                await wire.head()
                await wire.reader.readexactly(8 << 20)
            assert len(begun) == 3

    run(main())


# Many connections, and the end.


def test_thousands_of_connections_are_served(run_once, serving):
    async def main():
        async with serving(echo) as served:
            wires = await asyncio.gather(*(served.connect() for _ in range(400)))
            for wire in wires:
                wire.send(GET)
            for wire in wires:
                assert (await wire.answer())[0] == 200
            assert served.server.connections == 400

    run_once(main())


def test_one_connection_too_many_is_told_so(run, serving, until):
    async def main():
        async with serving(echo, max_connections=2) as served:
            kept = [await served.connect() for _ in range(2)]
            await until(lambda: served.server.connections == 2)
            answer = await served.ask(GET)
            assert error_of(answer)[0] == 503
            assert b"retry-after: 1" in answer
            kept[0].send(GET)
            assert (await kept[0].answer())[0] == 200
            kept[1].leave()
            await until(lambda: served.server.connections == 1)
            wire = await served.connect()
            wire.send(GET)
            assert (await wire.answer())[0] == 200

    run(main())


def test_drain_closes_what_is_idle_and_lets_the_rest_finish(run, serving, until):
    async def main():
        handler = Handler()
        async with serving(handler) as served:
            idle, fresh, busy, coming = [await served.connect() for _ in range(4)]
            busy.send(GET + GET)
            coming.send(post(b"abc")[:-1])
            handler.go.set()
            idle.send(GET)
            await idle.answer()
            await busy.answer()
            await busy.answer()
            handler.go.clear()
            busy.send(GET)
            await until(lambda: served.server.running == 1)
            draining = asyncio.create_task(served.server.drain(10))
            assert await idle.rest() == b""
            assert await fresh.rest() == b""
            with pytest.raises(OSError):
                await served.connect()
            coming.send(b"c")
            await until(lambda: served.server.running == 2)
            handler.go.set()
            for wire in (busy, coming):
                assert b"connection: close" in await wire.rest()
            assert await draining == 0
            assert (served.server.connections, served.server.running) == (0, 0)

    run(main())


def test_drain_cuts_what_does_not_finish_but_lets_it_say_so(run, serving, until):
    async def main():
        async def handler(request, reply):
            reply.start(200, [])
            reply.write(b"begun ")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if request.path == "/a":
                    reply.end(b"cut")
                raise

        async with serving(handler) as served:
            polite, silent = await served.connect(), await served.connect()
            polite.send(GET)
            silent.send(b"GET /b HTTP/1.1\r\n" + HOST + b"\r\n")
            await until(lambda: served.server.running == 2)
            assert await served.server.drain(0.1) == 2
            await polite.head()
            assert await polite.chunks() == b"begun cut"
            assert await silent.rest() == b"" or not (await silent.rest()).endswith(b"0\r\n\r\n")
            assert (served.server.connections, served.server.running) == (0, 0)

    run(main())


def test_drain_does_not_wait_for_a_client_that_reads_nothing(run, serving, until):
    async def main():
        replies = []

        async def handler(_, reply):
            reply.whole(200, [], b"x" * (32 << 20))
            replies.append(reply)

        async with serving(handler) as served:
            wire = await served.connect()
            wire.send(GET)
            await until(lambda: replies and not served.server.running)
            assert served.server.connections == 1
            assert await served.server.drain(0.1) == 0
            assert served.server.connections == 0

    run(main())


def test_drain_of_an_unused_server_is_over_at_once(run, serving):
    async def main():
        async with serving(echo) as served:
            assert await served.server.drain(10) == 0

    run(main())


# Encrypted.


def test_everything_works_over_tls(run, certificate, serving, until):
    async def main():
        handler, flood = Handler(), Flood()

        async def choose(request, reply):
            choice = {"/a": echo, "/wait": handler, "/flood": flood}[request.path]
            await choice(request, reply)

        server, client = certificate
        async with serving(choose, tls=server, trust=client, stall_timeout_s=0.5) as served:
            wire = await served.connect()
            for _ in range(2):
                wire.send(GET)
                assert (await wire.answer())[2] == b"GET /a "
            wire.send(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
            await until(lambda: handler.replies)
            wire.leave()
            await until(lambda: handler.gone == 1)
            handler.go.set()
            wire = await served.connect()
            wire.send(b"nonsense\r\n\r\n")
            assert (await wire.answer())[0] == 400
            wire.leave()
            wire = await served.connect()
            wire.send(b"GET /flood HTTP/1.1\r\n" + HOST + b"\r\n")
            await until(lambda: "gone" in flood.log)
            wire.reset()

    run(main())


def test_what_is_no_tls_is_dropped(run, certificate, serving):
    async def main():
        server, _ = certificate
        async with serving(echo, tls=server) as served:
            assert b"HTTP" not in await served.ask(GET)

    run(main())
