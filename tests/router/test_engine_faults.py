"""Every way an engine can fail, and the right answer or the clear error that follows. Never a hang, never a
silent cut."""

import json

import pytest

from toolkit.router.request.bodies import MISS_PARAMS
from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import FakeEngine, Fault, serve_engine
from toolkit.testing.serving import wait_until

REFUSED = b'{"error":{"message":"too long","type":"BadRequestError","param":"messages","code":400}}'
INJECTED = Fault().body
# By name: the fault of an answer that has not begun, and the status of the router's answer when no other
# engine is left. An engine's own error is its own answer.
BROKEN = {
    "500": ({"status": 500}, 500),
    "503": ({"status": 503}, 503),
    "redirect": ({"status": 307, "headers": ((b"location", b"http://elsewhere/"),)}, 502),
    "reset": ({"reset": "answer"}, 502),
    "cut-body": ({"reset": "head"}, 502),
    "hang": ({"hang": "answer"}, 504),
}
NOT_JSON = {
    "not-json": ({"status": 200, "body": b"<html>"}, 502),
    "half-an-object": ({"status": 200, "body": b'{"id": "x", "choi'}, 502),
    "a-list": ({"status": 200, "body": b"[]"}, 502),
    "nothing": ({"status": 200, "body": b""}, 502),
}
EARLY_STREAM = {
    "cut-stream": ({"reset": "stream", "after_events": 0}, 502),
    "empty-stream": ({"ends": b"", "after_events": 0}, 502),
    "error-event": ({"ends": b"ERROR", "after_events": 0}, 500),
}
LATE_STREAM = {
    "reset": ({"reset": "stream"}, "closed the connection", 502),
    "silent": ({"hang": "stream"}, "was silent", 504),
    "ends-early": ({"ends": b""}, "ended its stream without its last event", 502),
    "half-an-event": ({"ends": b'data: {"choices":[{"index"'}, "ended its stream without", 502),
}
# As vLLM 0.29 reports an error in a stream that it has begun.
ERROR_EVENT = {
    Endpoint.CHAT: b'data: {"error": {"message": "boom", "type": "InternalServerError", "code": 500}}\n\n'
    b"data: [DONE]\n\n",
    Endpoint.MESSAGES: b'event: error\ndata: {"type":"error","error":{"type":"internal_error",'
    b'"message":"boom"}}\n\n',
}
ERROR_EVENT[Endpoint.COMPLETIONS] = ERROR_EVENT[Endpoint.CHAT]
STREAMS_WITH_ERRORS = [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.MESSAGES]

every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))
both_modes = pytest.mark.parametrize("stream", [True, False])


def fault(table, name, endpoint=Endpoint.CHAT, **changed):
    members = dict(table[name][0])
    if members.get("ends") == b"ERROR":
        members["ends"] = ERROR_EVENT.get(endpoint, ERROR_EVENT[Endpoint.CHAT])
    return Fault(**members, **changed)


def error_of(response):
    """Of any endpoint's form."""
    error = response.json["error"]
    assert error["message"]
    assert error["type"]
    return error


def error_event(endpoint, event):
    """The error of an event of ours in the endpoint's form."""
    name, _, data = event.rpartition(b"data: ")
    assert name == (b"" if endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS) else b"event: error\n")
    told = json.loads(data)
    assert told.get("type") == (None if not name else "error")
    return told["error"]


BRIEF = {"prefill_timeout_s": 0.4, "stall_timeout_s": 0.4, "answer_timeout_s": 0.4}


@pytest.fixture(scope="module")
def whole_brief(start_stage, tmp_path_factory):
    with start_stage(tmp_path_factory.mktemp("brief") / "access.log", 1, **BRIEF) as stage:
        yield stage


@pytest.fixture(scope="module")
def whole_brief_square(start_stage, tmp_path_factory):
    with start_stage(tmp_path_factory.mktemp("brief") / "access.log", 2, **BRIEF) as stage:
        yield stage


@pytest.fixture
def brief(whole_brief):
    """One prefill and one decode engine behind a router that gives up soon."""
    whole_brief.reset()
    return whole_brief


@pytest.fixture
def brief_square(whole_brief_square):
    whole_brief_square.reset()
    return whole_brief_square


# Before the client has anything: no other engine is left.


@pytest.mark.parametrize("name", BROKEN | NOT_JSON)
@both_modes
@every_endpoint
def test_the_only_prefill_leg_fails(brief, endpoint, name, stream):
    broken = BROKEN | NOT_JSON
    brief.prefills[0].fault = fault(broken, name)
    answer = brief.client.turn(endpoint, ["hello"], stream=stream)
    assert answer.status == broken[name][1]
    if name in ("500", "503"):
        assert answer.body == INJECTED
    else:
        assert "prefill" in error_of(answer)["message"]
        assert brief.urls[0] not in answer.body.decode()
    assert answer.headers["content-type"] == "application/json"
    assert brief.decodes[0].seen == []
    wait_until(lambda: all(seen.ended != "running" for seen in brief.prefills[0].seen))


@pytest.mark.parametrize("name", BROKEN | NOT_JSON)
@both_modes
@every_endpoint
def test_the_only_decode_leg_fails_before_its_first_byte(brief, endpoint, name, stream):
    brief.decodes[0].fault = fault(BROKEN | NOT_JSON, name)
    answer = brief.client.turn(endpoint, ["hello"], stream=stream)
    assert answer.status == (BROKEN | NOT_JSON)[name][1]
    if name in ("500", "503"):
        assert answer.body == INJECTED
    else:
        assert "decode" in error_of(answer)["message"]
        assert brief.urls[1] not in answer.body.decode()
    assert answer.headers["content-type"] == "application/json"
    wait_until(lambda: all(seen.ended != "running" for seen in brief.decodes[0].seen))


@pytest.mark.parametrize("name", EARLY_STREAM)
@pytest.mark.parametrize("endpoint", STREAMS_WITH_ERRORS)
def test_the_only_decode_leg_fails_before_its_first_event(brief, endpoint, name):
    brief.decodes[0].fault = fault(EARLY_STREAM, name, endpoint)
    answer = brief.client.turn(endpoint, ["hello"], stream=True)
    assert answer.status == EARLY_STREAM[name][1]
    assert answer.headers["content-type"] == "application/json"
    if name == "error-event":
        assert answer.body in ERROR_EVENT[endpoint]
        assert error_of(answer)["message"] == "boom"
    else:
        assert "decode" in error_of(answer)["message"]


def test_what_decode_refuses_in_its_first_event_is_its_refusal(square, conversation):
    event = b'data: {"error": {"message": "no", "type": "BadRequestError", "code": 422}}\n\ndata: [DONE]\n\n'
    for engine in square.decodes:
        engine.fault = Fault(ends=event, after_events=0)
    answer = square.client.chat(conversation, stream=True)
    assert (answer.status, error_of(answer)["message"]) == (422, "no")
    assert len(square.seen("decodes")) == 1


# Before the client has anything: there is another engine.


@pytest.mark.parametrize("name", BROKEN | NOT_JSON)
@both_modes
def test_one_broken_prefill_leg_of_two_is_never_seen_by_a_client(brief_square, name, stream):
    stage = brief_square
    stage.prefills[0].fault = fault(BROKEN | NOT_JSON, name)
    answers = [stage.client.turn(endpoint, ["hi"], stream=stream) for endpoint in Endpoint]
    assert [(answer.status, answer.path) for answer in answers] == [(200, "prefill")] * 4
    assert sorted(answer.body for answer in answers) == sorted(seen.clean for seen in stage.seen("decodes"))
    assert all(seen.body["kv_transfer_params"]["remote_request_id"] for seen in stage.seen("decodes"))
    assert stage.prefills[0].seen


@pytest.mark.parametrize("name", BROKEN | NOT_JSON)
@both_modes
@every_endpoint
def test_a_decode_leg_that_fails_early_is_replaced_with_a_fresh_prefill(
    brief_square, conversation, endpoint, name, stream
):
    replaced_after(brief_square, conversation, endpoint, fault(BROKEN | NOT_JSON, name), stream)


@pytest.mark.parametrize("name", EARLY_STREAM)
@pytest.mark.parametrize("endpoint", STREAMS_WITH_ERRORS)
def test_a_stream_that_fails_before_its_first_event_is_asked_for_elsewhere(
    brief_square, conversation, endpoint, name
):
    replaced_after(brief_square, conversation, endpoint, fault(EARLY_STREAM, name, endpoint), True)


def replaced_after(stage, conversation, endpoint, injected, stream):
    """The second turn's decode engine fails so: the other one answers, with blocks that were meant for it."""
    assert stage.client.turn(endpoint, ["hello"], conversation_id=conversation).path == "prefill"
    holder = next(engine for engine in stage.decodes if engine.seen)
    other = next(engine for engine in stage.decodes if not engine.seen)
    holder.fault = injected
    answer = stage.client.turn(endpoint, ["hello"], stream=stream, conversation_id=conversation)
    assert (answer.status, answer.path) == (200, "prefill")
    assert answer.body == other.seen[0].clean
    asked = [seen.body["kv_transfer_params"] == MISS_PARAMS for seen in stage.seen("prefills")]
    assert sorted(asked) == [False, True, True]
    mine, theirs = (one.seen[-1].body["kv_transfer_params"] for one in (other, holder))
    assert mine["remote_request_id"] != theirs["remote_request_id"]


# With decode's handle in the request to prefill.


@pytest.mark.parametrize("name", [*(name for name in BROKEN | NOT_JSON if name != "reset"), "400"])
@both_modes
def test_prefill_fails_on_a_handle_so_the_turn_is_computed_cold(brief, conversation, name, stream):
    brief.client.chat(conversation)
    decode, prefill = brief.decodes[0], brief.prefills[0]
    handle = decode.seen[0].params
    refused = {"400": ({"status": 400, "body": REFUSED}, 400)}
    prefill.fault = fault(BROKEN | NOT_JSON | refused, name, only=1)
    answer = brief.client.chat(conversation, stream=stream)
    assert (answer.status, answer.path, answer.read_tokens) == (200, "prefill", 0)
    assert answer.body == decode.seen[-1].clean
    assert [seen.body["kv_transfer_params"] for seen in prefill.seen[1:]] == [handle, MISS_PARAMS]
    # The failed one may be half read: nobody comes back for it.
    wait_until(lambda: decode.leases.states[handle["pd_lease"]] == "released")
    assert brief.client.chat(conversation).path == "readback"
    assert prefill.seen[-1].body["kv_transfer_params"] == decode.seen[1].params


def test_an_idle_connection_that_the_engine_closed_just_then_costs_nothing(pair, conversation):
    """The engine has not seen the request, so it is sent once more as it is."""
    pair.client.chat(conversation)
    pair.prefills[0].fault = Fault(reset="answer", only=1)
    assert pair.client.chat(conversation).status == 200
    assert pair.client.chat(conversation).path == "readback"


def test_without_a_lease_prefills_blocks_are_never_pulled_twice(own, engine, conversation):
    """Of a stock prefill engine: who pulls twice may pull what others have written meanwhile."""
    (prefill, _), (decode, _) = engine("prefill"), engine("decode")
    prefill.stock = decode.stock = True
    client = own().client
    client.chat(conversation)
    decode.fault = Fault(reset="answer", only=1)
    assert client.chat(conversation).status == 502
    pulled = [seen.body["kv_transfer_params"]["remote_request_id"] for seen in decode.seen]
    assert pulled == [seen.params["remote_request_id"] for seen in prefill.seen]


def test_a_handle_goes_to_the_other_prefill_leg_when_the_first_is_not_there(engine, router, conversation):
    prefill = FakeEngine("prefill", "gone")
    (_, prefill_url), (decode, decode_url) = engine("prefill"), engine("decode")
    with serve_engine(prefill) as url:
        client = router([url, prefill_url], [decode_url], health_interval_s=60)
        client.chat(conversation)
    answers = [client.chat(conversation) for _ in range(2)]
    assert [answer.path for answer in answers] == ["readback"] * 2
    assert all(answer.read_tokens > 0 for answer in answers)
    assert len(decode.leases.held) == 1


# What engines refuse.


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
@both_modes
@every_endpoint
def test_what_prefill_refuses_is_passed_on_verbatim(pair, history, endpoint, status, stream):
    headers = ((b"content-type", b"application/json"), (b"retry-after", b"7"))
    pair.prefills[0].fault = Fault(status=status, body=REFUSED, headers=headers)
    answer = pair.client.turn(endpoint, history(1), stream=stream)
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (status, REFUSED, "7")
    assert len(pair.prefills[0].seen) == 1
    assert pair.decodes[0].seen == []


@pytest.mark.parametrize("status", [400, 404, 429])
@both_modes
@every_endpoint
def test_what_decode_refuses_is_passed_on_verbatim(square, history, endpoint, status, stream):
    for engine in square.decodes:
        engine.fault = Fault(status=status, body=REFUSED)
    answer = square.client.turn(endpoint, history(1), stream=stream)
    assert (answer.status, answer.body) == (status, REFUSED)
    assert len(square.seen("decodes")) == 1


def test_what_prefill_refuses_with_and_without_a_handle_is_passed_on(pair, conversation):
    pair.client.chat(conversation)
    pair.prefills[0].fault = Fault(status=400, body=REFUSED)
    answer = pair.client.chat(conversation)
    assert (answer.status, answer.body) == (400, REFUSED)
    asked = [seen.body["kv_transfer_params"] == MISS_PARAMS for seen in pair.prefills[0].seen]
    assert asked == [True, False, True]


# In the middle of a stream.


@pytest.mark.parametrize("name", LATE_STREAM)
@every_endpoint
def test_decode_breaks_in_the_middle_and_the_client_is_told(brief, conversation, endpoint, name):
    _, why, code = LATE_STREAM[name]
    decode = brief.decodes[0]
    decode.fault = fault(LATE_STREAM, name)
    broke = brief.client.metric("pd_router_requests_total", outcome="decode-broke", status="200")
    answer = brief.client.turn(endpoint, ["hi"], stream=True, conversation_id=conversation)
    assert answer.status == 200
    assert len(answer.events) == 3
    assert b"\n\n".join(answer.events[:2]) + b"\n\n" == decode.seen[0].clean
    error = error_event(endpoint, answer.events[2])
    assert why in error["message"]
    if endpoint != Endpoint.MESSAGES:
        assert error["code"] == code
    wait_until(lambda: decode.seen[0].ended in ("failed", "aborted"))
    assert brief.client.metric("pd_router_requests_total", outcome="decode-broke", status="200") == broke + 1
    decode.fault = Fault()
    assert brief.client.turn(endpoint, ["hi"], conversation_id=conversation).path == "prefill"


@every_endpoint
def test_decode_breaks_after_its_last_event_and_the_answer_is_whole(brief, conversation, endpoint):
    decode = brief.decodes[0]
    decode.fault, name = Fault(hang="end", only=1), f"no-end-{endpoint.name}"
    answer = brief.client.turn(
        endpoint, ["hi"], stream=True, conversation_id=conversation, headers={"X-Request-Id": name}
    )
    assert (answer.status, answer.body) == (200, decode.seen[0].clean)
    line = brief.client.logged(name)
    assert line["outcome"] == "ok"
    assert "was silent" in line["failures"]
    assert brief.client.turn(endpoint, ["hi"], conversation_id=conversation).status == 200


@pytest.mark.parametrize("endpoint", STREAMS_WITH_ERRORS)
def test_an_error_event_in_the_middle_is_the_engines_own_last_word(pair, conversation, endpoint):
    decode = pair.decodes[0]
    decode.fault = Fault(ends=ERROR_EVENT[endpoint])
    failed = pair.client.metric("pd_router_requests_total", outcome="engine-error", status="200")
    saved = pair.client.metric("pd_router_handles_total", event="saved")
    answer = pair.client.turn(endpoint, ["hi"], stream=True, conversation_id=conversation)
    assert (answer.status, answer.body) == (200, decode.seen[0].clean + ERROR_EVENT[endpoint])
    assert pair.client.metric("pd_router_handles_total", event="saved") == saved
    decode.fault = Fault()
    assert pair.client.turn(endpoint, ["hi"], conversation_id=conversation).path == "prefill"
    assert pair.client.metric("pd_router_requests_total", outcome="engine-error", status="200") == failed + 1


def test_the_log_names_the_engine_that_failed_and_why(brief):
    for name, injected, outcome in (
        ("broke", fault(LATE_STREAM, "reset"), "decode-broke"),
        ("unanswered", Fault(reset="head"), "engine-error"),
        ("failed", Fault(status=500), "engine-error"),
    ):
        brief.decodes[0].fault = injected
        brief.client.chat(stream=True, headers={"X-Request-Id": name})
        line = brief.client.logged(name)
        assert (line["outcome"], line["saved"], line["retries"]) == (outcome, "false", "0")
        assert f"decode {brief.urls[1]}" in line["failures"]
    assert "answered 500" in line["failures"]


def test_a_text_that_looks_like_an_error_is_none(pair, conversation):
    pair.decodes[0].tokens = ("A", 'data: {"error": 1}\n\n', "event: error\ndata: {}", "B")
    answer = pair.client.chat(conversation, stream=True)
    assert answer.body == pair.decodes[0].seen[0].clean
    assert pair.client.chat(conversation).path == "readback"
