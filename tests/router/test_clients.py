"""Clients that leave, hurry, crowd or stop reading: engines must not work for nobody."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from toolkit.router.clientwatch import ClientGone, ClientWatch
from toolkit.router.config import RouterConfig
from toolkit.router.engines import Leg
from toolkit.router.upstream import KEEPALIVE_S, SendMark, Upstream
from toolkit.testing.fake_engine import Fault, wait_until

CHAT = "/v1/chat/completions"


def leave_during(stage, body, running):
    connection = stage.client.send("POST", CHAT, body)
    wait_until(running)
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_prefill_aborts_prefill(pair, conversation, stream):
    pair.prefills[0].fault = Fault(hang="answer")
    body = {"messages": [], "stream": stream, "conversation_id": conversation}
    leave_during(pair, body, lambda: pair.prefills[0].seen)
    wait_until(lambda: pair.prefills[0].seen[0].ended == "aborted")
    assert pair.decodes[0].seen == []


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_decode_thinks_aborts_decode(pair, conversation, stream):
    pair.decodes[0].fault = Fault(hang="answer")
    body = {"messages": [], "stream": stream, "conversation_id": conversation}
    leave_during(pair, body, lambda: pair.decodes[0].seen)
    wait_until(lambda: pair.decodes[0].seen[0].ended == "aborted")


def test_leaving_in_the_middle_of_a_stream_aborts_decode_and_keeps_nothing(pair, conversation):
    pair.decodes[0].fault = Fault(hang="stream", after_events=2, only=1)
    connection = pair.client.send(
        "POST", CHAT, {"messages": [], "stream": True, "conversation_id": conversation}
    )
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    answer.close()
    connection.close()
    wait_until(lambda: pair.decodes[0].seen[0].ended == "aborted")
    wait_until(lambda: "outcome=client-gone" in pair.client.log.read_text())
    assert pair.client.chat(conversation).path == "prefill"


def test_leaving_after_the_last_event_is_no_fault_and_the_handle_is_kept(pair, conversation):
    pair.decodes[0].fault = Fault(hang="end", only=1)
    written = len(pair.client.log.read_text())
    body = {"model": "m", "messages": [], "stream": True, "conversation_id": conversation}
    connection = pair.client.send("POST", CHAT, body)
    answer = connection.getresponse()
    while answer.readline() != b"data: [DONE]\n":
        pass
    answer.close()
    connection.close()
    wait_until(lambda: pair.decodes[0].seen[0].ended == "aborted")
    wait_until(lambda: "outcome=" in pair.client.log.read_text()[written:])
    assert "outcome=ok" in pair.client.log.read_text()[written:]
    assert pair.client.chat(conversation).path == "readback"


def test_leaving_during_a_readback_does_not_let_the_handle_be_used_again(pair, conversation):
    pair.client.chat(conversation)
    pair.prefills[0].fault = Fault(hang="answer", only=1)
    leave_during(
        pair,
        {"model": "m", "messages": [], "conversation_id": conversation},
        lambda: len(pair.prefills[0].seen) == 2,
    )
    wait_until(lambda: pair.prefills[0].seen[1].ended == "aborted")
    assert pair.client.chat(conversation).path == "prefill"


def test_two_turns_at_once_do_not_share_a_handle(pair, conversation):
    pair.client.chat(conversation)
    pair.prefills[0].fault = Fault(delay_s=0.1)
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
    # No queue of our own: all 150 were with prefill at the same time.
    assert len(pair.prefills[0].seen) == 150


def test_a_client_that_stops_reading_is_given_up(engine, router):
    (_, prefill_url), (decode, decode_url) = engine("prefill"), engine("decode")
    decode.tokens = ("x" * 200_000,) * 100
    client = router([prefill_url], [decode_url], stall_timeout_s=1.0)
    connection = client.send("POST", CHAT, {"messages": [], "stream": True})
    wait_until(lambda: "outcome=client-gone" in client.log.read_text())
    wait_until(lambda: decode.seen[0].ended == "aborted")
    connection.close()


def test_a_client_that_left_after_prefill_answered_still_reaches_decode_to_be_aborted(engine):
    """Decode's abort is what frees prefill's blocks before their lease ends."""
    fake, url = engine("decode")
    fake.fault = Fault(hang="answer")

    async def gone():
        return {"type": "http.disconnect"}

    async def run():
        config = RouterConfig(prefill=("http://127.0.0.1:1",), decode=(url,))
        async with Upstream(config) as upstream, ClientWatch(gone) as watch:
            while not watch.gone:
                await asyncio.sleep(0)
            mark = SendMark()
            body = b'{"messages":["' + b"x" * 3_000_000 + b'"]}'
            opening = upstream.open(Leg("decode", url), CHAT, {}, body, mark=mark, silence_s=5.0)
            with pytest.raises(ClientGone):
                await watch.run(opening, mark.when_sent)

    asyncio.run(run())
    wait_until(lambda: [seen.ended for seen in fake.seen] == ["aborted"])


def test_a_client_that_left_before_prefill_is_asked_reaches_nobody():
    asked = []

    async def gone():
        return {"type": "http.disconnect"}

    async def run():
        async with ClientWatch(gone) as watch:
            while not watch.gone:
                await asyncio.sleep(0)

            async def ask():
                asked.append(True)

            with pytest.raises(ClientGone):
                await watch.run(ask())

    asyncio.run(run())
    assert asked == []


def test_idle_engine_connections_are_dropped_before_the_engine_drops_them():
    """vLLM's uvicorn closes them after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)."""
    assert 0 < KEEPALIVE_S < 5


@pytest.mark.parametrize("stream", [True, False])
def test_what_outlasts_the_drain_is_told_so(pair, conversation, stream, start_router):
    pair.decodes[0].fault = Fault(hang="stream" if stream else "answer", after_events=1)
    body = {"messages": [], "stream": stream, "conversation_id": conversation}
    with start_router(pair.urls[:1], pair.urls[1:], pair.client.log) as client:
        connection = client.send("POST", CHAT, body)
        if stream:
            answer = connection.getresponse()
            first = answer.readline()
            assert first.startswith(b"data: {")
        wait_until(lambda: pair.decodes[0].seen)
    if stream:
        rest = answer.read()
        assert rest.count(b"data: ") == 1
        assert b'"code":503' in rest
        assert b"[DONE]" not in rest
    else:
        answer = connection.getresponse()
        assert answer.status == 503
        assert b"shutting down" in answer.read()
    connection.close()
    wait_until(lambda: pair.decodes[0].seen[0].ended == "aborted")


def test_a_body_that_stops_coming_ends_in_408(pair, start_router):
    with start_router(pair.urls[:1], pair.urls[1:], pair.client.log, stall_timeout_s=0.2) as client:
        parts = urlsplit(client.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=5) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 100\r\n\r\n{")
            assert raw.recv(100).startswith(b"HTTP/1.1 408")
