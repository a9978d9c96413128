"""Every way an engine can fail, and the right answer or the clear error that follows. Never a hang."""

import json

import pytest

from toolkit.router.policy import MISS_PARAMS
from toolkit.testing.fake_engine import Fault, free_port, wait_until

REFUSED = b'{"error":{"message":"too long","type":"BadRequestError","param":"messages","code":400}}'
BROKEN = {
    "500": {"status": 500},
    "503": {"status": 503},
    "reset": {"reset": "answer"},
    "not-json": {"status": 200, "body": b"<html>"},
}


def events(body):
    return [event for event in body.split(b"\n\n") if event]


def dead_url():
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("stream", [True, False])
def test_prefill_fails_on_a_handle_so_the_turn_is_computed_cold(pair, conversation, fault, stream):
    pair.client.chat(conversation)
    handle = pair.decodes[0].seen[0].params
    pair.prefills[0].fault = Fault(**BROKEN[fault], only=1)
    answer = pair.client.chat(conversation, stream=stream)
    assert (answer.status, answer.path) == (200, "prefill")
    assert answer.body == pair.decodes[0].seen[-1].clean
    asked = [seen.body["kv_transfer_params"] for seen in pair.prefills[0].seen[1:]]
    assert asked == [handle, MISS_PARAMS]
    # The turn left a new handle; the one that failed is never sent again.
    assert pair.client.chat(conversation).path == "readback"
    assert pair.prefills[0].seen[-1].body["kv_transfer_params"] == pair.decodes[0].seen[1].params


@pytest.mark.parametrize("fault", BROKEN)
def test_one_broken_prefill_leg_of_two_is_never_seen_by_a_client(square, fault):
    square.prefills[0].fault = Fault(**BROKEN[fault])
    answers = [square.client.chat(stream=True) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert all(answer.path == "prefill" for answer in answers)
    assert len(square.prefills[0].seen) > 0


@pytest.mark.parametrize(("fault", "status"), [("500", 502), ("503", 503), ("reset", 502), ("not-json", 502)])
@pytest.mark.parametrize("stream", [True, False])
def test_the_only_prefill_leg_fails(pair, conversation, fault, status, stream):
    pair.prefills[0].fault = Fault(**BROKEN[fault])
    answer = pair.client.chat(conversation, stream=stream)
    assert answer.status == status
    assert "prefill" in answer.json["error"]["message"]
    assert pair.decodes[0].seen == []
    assert len(pair.prefills[0].seen) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
@pytest.mark.parametrize("stream", [True, False])
def test_what_prefill_refuses_is_passed_on_verbatim(pair, conversation, status, stream):
    headers = ((b"content-type", b"application/json"), (b"retry-after", b"7"))
    pair.prefills[0].fault = Fault(status=status, body=REFUSED, headers=headers)
    answer = pair.client.chat(conversation, stream=stream)
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (status, REFUSED, "7")
    assert len(pair.prefills[0].seen) == 1
    assert pair.decodes[0].seen == []


@pytest.mark.parametrize("status", [400, 404, 429])
@pytest.mark.parametrize("stream", [True, False])
def test_what_decode_refuses_is_passed_on_verbatim(square, conversation, status, stream):
    for engine in square.decodes:
        engine.fault = Fault(status=status, body=REFUSED)
    answer = square.client.chat(conversation, stream=stream)
    assert (answer.status, answer.body) == (status, REFUSED)
    assert len(square.seen("decodes")) == 1


@pytest.mark.parametrize(("fault", "status"), [("500", 502), ("503", 503), ("reset", 502)])
@pytest.mark.parametrize("stream", [True, False])
def test_the_only_decode_leg_fails_before_its_first_byte(pair, conversation, fault, status, stream):
    pair.decodes[0].fault = Fault(**BROKEN[fault])
    answer = pair.client.chat(conversation, stream=stream)
    assert answer.status == status
    assert "decode" in answer.json["error"]["message"]
    assert pair.urls[1] not in answer.body.decode()
    assert answer.headers["content-type"] == "application/json"
    assert len(pair.decodes[0].seen) == 1


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"reset": "answer"}, {"reset": "stream", "after_events": 0}]
)
def test_a_decode_leg_that_fails_early_is_replaced_with_a_fresh_prefill(square, conversation, fault):
    square.client.chat(conversation)
    holder = next(engine for engine in square.decodes if engine.seen)
    other = next(engine for engine in square.decodes if not engine.seen)
    holder.fault = Fault(**fault)
    answer = square.client.chat(conversation, stream=True)
    assert (answer.status, answer.path) == (200, "prefill")
    assert answer.body == other.seen[0].clean
    prefills = sorted(
        square.seen("prefills"), key=lambda seen: seen.body["kv_transfer_params"] == MISS_PARAMS
    )
    assert [seen.body["kv_transfer_params"] == MISS_PARAMS for seen in prefills] == [False, True, True]
    assert other.seen[0].body["kv_transfer_params"] != holder.seen[-1].body["kv_transfer_params"]


@pytest.mark.parametrize("fault", [{"reset": "stream"}, {"hang": "stream"}])
def test_decode_breaks_in_the_middle_and_the_client_is_told(engine, router, conversation, fault):
    (_, prefill_url), (decode, decode_url) = engine("prefill"), engine("decode")
    client = router([prefill_url], [decode_url], stall_timeout_s=0.3)
    decode.fault = Fault(**fault, after_events=2)
    answer = client.chat(conversation, stream=True)
    assert answer.status == 200
    got = events(answer.body)
    assert b"\n\n".join(got[:2]) + b"\n\n" == decode.seen[0].clean
    error = json.loads(got[2].removeprefix(b"data: "))["error"]
    assert (error["code"], len(got)) == (502, 3)
    assert b"[DONE]" not in answer.body
    wait_until(lambda: decode.seen[0].ended in ("failed", "aborted"))
    decode.fault = Fault()
    assert client.chat(conversation, stream=True).path == "prefill"


@pytest.mark.parametrize("stream", [True, False])
def test_engines_that_never_answer_are_given_up(engine, router, conversation, stream):
    (prefill, prefill_url), (decode, decode_url) = engine("prefill"), engine("decode")
    client = router(
        [prefill_url], [decode_url], stall_timeout_s=0.3, answer_timeout_s=0.3, prefill_timeout_s=0.3
    )
    decode.fault = Fault(hang="answer")
    answer = client.chat(conversation, stream=stream)
    assert (answer.status, "in time" in answer.json["error"]["message"]) == (502, True)
    wait_until(lambda: decode.seen[0].ended == "aborted")

    prefill.fault = Fault(hang="answer")
    answer = client.chat(conversation, stream=stream)
    assert (answer.status, "in time" in answer.json["error"]["message"]) == (502, True)
    wait_until(lambda: prefill.seen[1].ended == "aborted")


def test_no_engine_at_all(router):
    client = router([dead_url()], [dead_url()])
    assert client.ask("GET", "/health").status == 503
    for answer in (client.chat(), client.chat(stream=True), client.ask("GET", "/v1/models")):
        assert (answer.status, answer.json["error"]["code"]) == (503, 503)


def test_a_dead_leg_gets_no_traffic_and_a_living_one_does(engine, router, conversation):
    (_, prefill_url), (decode, decode_url) = engine("prefill"), engine("decode")
    client = router([dead_url(), prefill_url], [decode_url, dead_url()])
    assert [client.chat(conversation).status for _ in range(4)] == [200] * 4
    assert len(decode.seen) == 4
    health = client.ask("GET", "/health")
    assert [leg["healthy"] for leg in health.json["prefill"]] == [False, True]
    assert health.status == 200


def test_an_unhealthy_leg_is_ejected_and_comes_back(square, conversation):
    square.client.chat(conversation)
    holder = next(engine for engine in square.decodes if engine.seen)
    holder.healthy = False
    wait_until(lambda: square.legs("decode") == 1)
    # Its handle would make prefill wait for an engine that is gone: the turn is computed cold elsewhere.
    answer = square.client.chat(conversation)
    assert (answer.status, answer.path) == (200, "prefill")
    assert len(holder.seen) == 1
    holder.healthy = True
    wait_until(lambda: square.legs("decode") == 2)
    assert square.client.chat(conversation).path == "readback"


def test_a_handle_that_no_engine_was_sent_is_not_lost(pair, conversation):
    pair.client.chat(conversation)
    pair.prefills[0].healthy = False
    wait_until(lambda: pair.legs("prefill") == 0)
    assert pair.client.chat(conversation).status == 503
    pair.prefills[0].healthy = True
    wait_until(lambda: pair.legs("prefill") == 1)
    assert pair.client.chat(conversation).path == "readback"


def test_handles_expire_in_the_router_before_they_do_in_decode(engine, router, conversation):
    (_, prefill_url), (_, decode_url) = engine("prefill"), engine("decode")
    client = router([prefill_url], [decode_url], ttl_s=0.2)
    client.chat(conversation)
    wait_until(lambda: b"pd_router_conversations 0.0" in client.ask("GET", "/metrics").body)
    assert client.chat(conversation).path == "prefill"


def test_a_thousand_conversations_do_not_outgrow_the_map(engine, router):
    (_, prefill_url), (_, decode_url) = engine("prefill"), engine("decode")
    client = router([prefill_url], [decode_url], max_conversations=5)
    for number in range(12):
        client.chat(f"c{number}")
    assert b"pd_router_conversations 5.0" in client.ask("GET", "/metrics").body
    assert client.chat("c0").path == "prefill"
    assert client.chat("c11").path == "readback"
