"""Clients that leave, hurry, crowd or stop reading: engines must not work for nobody."""

import asyncio
import contextlib
import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import Fault
from toolkit.testing.serving import wait_until

END = {
    Endpoint.CHAT: b"data: [DONE]\n",
    Endpoint.COMPLETIONS: b"data: [DONE]\n",
    Endpoint.RESPONSES: b"event: response.completed\n",
    Endpoint.MESSAGES: b"event: message_stop\n",
}
# Several times what new connections between engine, router and client hold.
ENDLESS = ("x" * 400_000,) * 60
every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))
both_modes = pytest.mark.parametrize("stream", [True, False])


@pytest.fixture
def begin(pair, make_body):
    """Sends a turn whose answer is not waited for: `begin(endpoint, text, **members)` -> the connection."""

    def send(endpoint, text, **members):
        return pair.client.send("POST", endpoint, make_body(endpoint, [text], **members))

    return send


@every_endpoint
@both_modes
def test_leaving_during_prefill_aborts_prefill(pair, begin, conversation, endpoint, stream):
    pair.prefills[0].fault = Fault(hang="answer")
    connection = begin(endpoint, "hello", stream=stream, conversation_id=conversation)
    wait_until(lambda: pair.prefills[0].seen)
    connection.close()
    wait_until(lambda: pair.prefills[0].seen[0].ended == "aborted")
    assert pair.decodes[0].seen == []


@every_endpoint
@both_modes
def test_leaving_while_decode_thinks_aborts_decode(pair, begin, conversation, endpoint, stream):
    pair.decodes[0].fault = Fault(hang="answer")
    connection = begin(endpoint, "hello", stream=stream, conversation_id=conversation)
    wait_until(lambda: pair.decodes[0].seen)
    connection.close()
    wait_until(lambda: pair.decodes[0].seen[0].ended == "aborted")


@every_endpoint
def test_leaving_in_the_middle_of_a_stream_aborts_decode_and_keeps_nothing(
    pair, begin, conversation, endpoint
):
    pair.decodes[0].fault = Fault(hang="stream", after_events=2, only=1)
    gone = pair.client.metric("pd_router_client_gone_total")
    connection = begin(endpoint, "hello", stream=True, conversation_id=conversation)
    answer = connection.getresponse()
    assert answer.readline().strip()
    answer.close()
    connection.close()
    wait_until(lambda: pair.decodes[0].seen[0].ended == "aborted")
    wait_until(lambda: pair.client.metric("pd_router_client_gone_total") == gone + 1)
    answer = pair.client.turn(endpoint, ["hello"], conversation_id=conversation)
    assert (answer.status, answer.path) == (200, "prefill")


@every_endpoint
def test_leaving_after_the_last_event_is_no_fault_and_the_handle_is_kept(pair, begin, conversation, endpoint):
    pair.decodes[0].fault = Fault(hang="end", only=1)
    good = pair.client.metric("pd_router_requests_total", outcome="ok", stream="true")
    connection = begin(endpoint, "hello", stream=True, conversation_id=conversation)
    answer = connection.getresponse()
    while answer.readline() != END[endpoint]:
        pass
    while answer.readline() != b"\n":
        pass
    answer.close()
    connection.close()
    wait_until(lambda: pair.decodes[0].seen[0].ended == "aborted")
    wait_until(
        lambda: pair.client.metric("pd_router_requests_total", outcome="ok", stream="true") == good + 1
    )
    # The stream of /v1/messages has no place for a handle.
    expected = "prefill" if endpoint == Endpoint.MESSAGES else "readback"
    assert pair.client.turn(endpoint, ["hello"], conversation_id=conversation).path == expected


def test_leaving_during_a_readback_does_not_let_the_handle_be_used_again(pair, begin, conversation):
    pair.client.turn(Endpoint.CHAT, ["hello"], conversation_id=conversation)
    lease = pair.decodes[0].seen[0].params["pd_lease"]
    pair.prefills[0].fault = Fault(hang="answer", only=1)
    connection = begin(Endpoint.CHAT, "hello", conversation_id=conversation)
    wait_until(lambda: len(pair.prefills[0].seen) == 2)
    connection.close()
    wait_until(lambda: pair.prefills[0].seen[1].ended == "aborted")
    wait_until(lambda: pair.decodes[0].leases.states[lease] == "released")
    assert pair.client.chat(conversation).path == "prefill"


def test_two_turns_at_once_do_not_share_a_handle(pair, conversation):
    pair.client.chat(conversation)
    pair.prefills[0].fault = Fault(delay_s=0.3)
    with ThreadPoolExecutor(4) as threads:
        paths = list(threads.map(lambda _: pair.client.chat(conversation).path, range(4)))
    assert sorted(paths) == ["prefill", "prefill", "prefill", "readback"]


def test_many_clients_at_once_all_get_their_own_whole_stream(pair):
    pair.prefills[0].fault = Fault(delay_s=0.2)
    pair.decodes[0].token_s = 0.01
    with ThreadPoolExecutor(150) as threads:
        answers = list(threads.map(lambda n: pair.client.chat(f"crowd-{n}", stream=True), range(150)))
    assert {answer.status for answer in answers} == {200}
    assert {answer.body for answer in answers} == {seen.clean for seen in pair.decodes[0].seen}
    assert len(pair.prefills[0].seen) == 150


def test_a_slow_reader_holds_its_engine_back_and_gets_every_byte(own, receive):
    stage = own()
    decode = stage.decodes[0]
    decode.tokens = ENDLESS
    connection = stage.client.send("POST", Endpoint.CHAT, {"messages": [], "stream": True})
    wait_until(lambda: len(decode.seen) == 1 and len(decode.seen[0].sent) >= 2)
    sent = 0
    while sent != len(decode.seen[0].sent):
        sent = len(decode.seen[0].sent)
        time.sleep(0.2)
    assert decode.seen[0].ended == "running"
    assert receive(connection).body == decode.seen[0].clean
    wait_until(lambda: decode.seen[0].ended == "done")


def test_a_client_that_stops_reading_is_given_up(own):
    stage = own(stall_timeout_s=1.0)
    decode = stage.decodes[0]
    decode.tokens = ENDLESS
    connection = stage.client.send("POST", Endpoint.CHAT, {"messages": [], "stream": True})
    wait_until(lambda: stage.client.metric("pd_router_client_gone_total") == 1)
    wait_until(lambda: decode.seen[0].ended == "aborted")
    connection.close()


class Gate:
    """Passes connections on to an engine, but holds large requests back while it is closed, or cuts them."""

    SMALL = 4096

    def __init__(self, url):
        self.reached, self.open, self.cut = threading.Event(), threading.Event(), threading.Event()
        self._engine = urlsplit(url).hostname, urlsplit(url).port
        self._running = set()

    async def run(self, port, ended):
        """Until `ended`; puts the port into the queue `port`."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            port.put(server.sockets[0].getsockname()[1])
            while not ended.is_set():
                await asyncio.sleep(0.01)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _serve(self, client, to_client):
        """One connection, until either side closes it."""
        self._running.add(asyncio.current_task())
        engine, to_engine = await asyncio.open_connection(*self._engine)
        ways = [self._pass(client, to_engine, True), self._pass(engine, to_client, False)]
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for writer in (to_engine, to_client):
                writer.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    async def _pass(self, source, target, held):
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if held and len(data) > self.SMALL:
                    self.reached.set()
                    while not self.open.is_set():
                        if self.cut.is_set():
                            return
                        await asyncio.sleep(0.01)
                target.write(data)
                await target.drain()


@pytest.fixture
def gate(bare):
    """A gate before decode, and its URL."""
    gate, port, ended = Gate(bare.urls[1]), queue.Queue(), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(gate.run(port, ended),))
    thread.start()
    yield gate, f"http://127.0.0.1:{port.get()}"
    gate.open.set()
    ended.set()
    thread.join()


def test_a_client_that_left_after_prefill_answered_still_reaches_decode_to_be_aborted(bare, router, gate):
    """Decode's abort is what frees prefill's blocks before their lease ends."""
    decode, (gate, url) = bare.decodes[0], gate
    decode.fault = Fault(hang="answer")
    client = router(bare.urls[:1], [url])
    # More than the sockets between router and engine take.
    long = [{"role": "user", "content": "x" * 20_000_000}]
    connection = client.send("POST", Endpoint.CHAT, {"model": "m", "messages": long})
    assert gate.reached.wait(10)
    connection.close()
    assert decode.seen == []
    gate.open.set()
    wait_until(lambda: [seen.ended for seen in decode.seen] == ["aborted"])
    wait_until(lambda: client.metric("pd_router_client_gone_total") == 1)
    assert decode.seen[0].body["kv_transfer_params"]["do_remote_prefill"] is True


def test_nobody_is_asked_again_for_a_client_that_left(bare, router, gate):
    """Decode fails before it has the whole request: without its client there is no second attempt."""
    gate, url = gate
    client = router(bare.urls[:1], [url, bare.urls[1]])
    connections = []
    while not gate.reached.is_set():
        # New conversations go to the engines in turn.
        long = [{"role": "user", "content": f"{len(connections)} {'x' * 20_000_000}"}]
        connections.append(client.send("POST", Endpoint.CHAT, {"model": "m", "messages": long}))
        wait_until(lambda: gate.reached.is_set() or bare.decodes[0].seen)
    connections[-1].close()
    # What comes after it finds the router knowing of it.
    client.ask("GET", "/health")
    asked = [len(bare.prefills[0].seen), len(bare.decodes[0].seen)]
    gate.cut.set()
    wait_until(lambda: client.metric("pd_router_client_gone_total") == 1)
    assert [len(bare.prefills[0].seen), len(bare.decodes[0].seen)] == asked
    assert client.metric("pd_router_retries_total") == 0
    for connection in connections:
        connection.close()


@both_modes
def test_what_outlasts_the_drain_is_told_so(bare, conversation, stream, start_router, receive, tmp_path):
    bare.decodes[0].fault = Fault(hang="stream" if stream else "answer", after_events=1)
    body = {"messages": [], "stream": stream, "conversation_id": conversation}
    with start_router(bare.urls[:1], bare.urls[1:], tmp_path / "access.log") as client:
        connection = client.send("POST", Endpoint.CHAT, body)
        wait_until(lambda: bare.decodes[0].seen)
        if stream:
            wait_until(lambda: bare.decodes[0].seen[0].sent)
    answer = receive(connection)
    if stream:
        first, error = answer.events
        assert first + b"\n\n" == bare.decodes[0].seen[0].clean
        assert b'"code":503' in error
    else:
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
    assert b"shutting down" in answer.body
    wait_until(lambda: bare.decodes[0].seen[0].ended == "aborted")


def test_a_body_that_stops_coming_ends_in_408(own):
    client = own(stall_timeout_s=0.2).client
    with socket.create_connection(client.address, timeout=5) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 100\r\n\r\n{")
        assert raw.recv(100).startswith(b"HTTP/1.1 408")
