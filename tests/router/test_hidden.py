"""What the router adds to requests stays between it and the engines, whatever an engine says of it.

And what an engine keeps for one client is out of another's reach.
"""

import json

import pytest

from toolkit.router.request.dialects import Endpoint
from toolkit.router.request.kvmember import cut_shown
from toolkit.testing.fake_engine import Fault
from toolkit.testing.serving import wait_until

PARAMS = {"remote_host": "10.1.2.3", "remote_block_ids": [[1]], "pd_proof": {"format": 2, "digests": "x"}}


def validation_error(shown):
    """As vLLM 0.29 answers where one of its validators refuses a whole request."""
    message = f"1 validation error: [{{'type': 'value_error', 'input': {shown}, 'ctx': {{}}}}]"
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "code": 400}}).encode()


@pytest.mark.parametrize("role", ["prefills", "decodes"])
@pytest.mark.parametrize("endpoint", list(Endpoint))
@pytest.mark.parametrize("status", [400, 422, 500])
def test_an_error_that_repeats_the_request_shows_nothing_of_ours(pair, endpoint, role, status):
    told = {"model": "m", "stream_options": {"include_usage": True}, "kv_transfer_params": PARAMS, "n": 1}
    (engine,) = getattr(pair, role)
    engine.fault = Fault(status=status, body=validation_error(told))
    answer = pair.client.turn(endpoint, ["hello"])
    assert answer.status == status
    assert b"kv_transfer_params" not in answer.body
    assert b"10.1.2.3" not in answer.body
    # The rest of the engine's words is there.
    assert b"'stream_options': {'include_usage': True}, 'n': 1}" in answer.body


@pytest.mark.parametrize(
    "shown", ["{'kv_transfer_params': {'remote_host': '10.1.2", '{"kv_transfer_params": 1}']
)
def test_an_error_in_which_it_cannot_be_told_apart_is_not_passed_on(pair, shown):
    pair.decodes[0].fault = Fault(status=400, body=validation_error(shown))
    answer = pair.client.chat()
    assert (answer.status, answer.json["error"]["code"]) == (400, 400)
    assert b"kv_transfer_params" not in answer.body
    assert b"10.1.2" not in answer.body


@pytest.mark.parametrize(
    ("error", "cut"),
    [
        (b"plain", b"plain"),
        (b"{'a': 1, 'kv_transfer_params': {'x': None}}", b"{'a': 1}"),
        (b"{'kv_transfer_params': {'x': {'y': 1}}, 'b': 2}", b"{, 'b': 2}"),
        (b"{'kv_transfer_params': {'x': {'y': {}}}}", None),
        (b"kv_transfer_params is wrong", None),
    ],
)
def test_what_is_cut_of_an_error(error, cut):
    assert cut_shown(error) == cut


def test_a_client_cannot_choose_under_which_id_a_response_is_stored(pair):
    made = pair.client.turn(Endpoint.RESPONSES, ["mine"], headers={"Authorization": "Bearer a"}).json["id"]
    theirs = pair.client.turn(
        Endpoint.RESPONSES, ["theirs"], request_id=made, headers={"Authorization": "Bearer b"}
    )
    assert theirs.json["id"] != made
    assert all("request_id" not in seen.body for seen in (*pair.prefills[0].seen, *pair.decodes[0].seen))
    answer = pair.client.ask("GET", f"/v1/responses/{made}", headers={"Authorization": "Bearer b"})
    assert answer.status == 404


@pytest.mark.parametrize("kind", [[], {}, 1, None, True])
def test_a_tool_of_a_strange_type_is_the_engines_to_judge(pair, kind):
    assert pair.client.turn(Endpoint.RESPONSES, ["hello"], tools=[{"type": kind}]).status == 200


def test_a_turn_that_failed_is_not_remembered_as_held(pair, conversation):
    error = b'data: {"error": {"message": "out of memory", "code": 500}}\n\ndata: [DONE]\n\n'
    headers = ((b"content-type", b"text/event-stream"),)
    pair.decodes[0].fault = Fault(status=200, body=error, headers=headers, only=1)
    assert pair.client.chat(conversation, stream=True).status == 500
    again = pair.client.chat(conversation, stream=True, headers={"X-Request-Id": f"again-{conversation}"})
    assert again.status == 200
    assert pair.client.logged(f"again-{conversation}")["held_tokens"] == "-"


def test_a_streamed_turn_is_a_load_until_its_first_event(pair, conversation):
    local = {"X-KV-Path": "decode-local"}
    pair.client.chat(conversation)
    pair.decodes[0].fault = Fault(hang="stream", after_events=0, only=1)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello " * 50}], "stream": True}
    connection = pair.client.send("POST", Endpoint.CHAT, {**body, "conversation_id": conversation}, local)
    wait_until(lambda: pair.client.metric("pd_router_leg_pending_tokens", role="decode") > 0)
    # The head of its answer came long ago.
    wait_until(lambda: len(pair.decodes[0].seen) == 2)
    assert pair.client.metric("pd_router_leg_pending_tokens", role="decode") > 0
    connection.close()
    wait_until(lambda: pair.client.metric("pd_router_leg_pending_tokens", role="decode") == 0)


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES])
@pytest.mark.parametrize(
    "told", ["{'n': 1, 'kv_transfer_params': {'remote_host': '10.1.2.3'}}", "kv_transfer_params 10.1.2.3"]
)
def test_an_error_in_the_middle_of_a_stream_shows_nothing_of_ours(pair, endpoint, told):
    event = {"error": {"message": told, "code": 500}}
    named = b"event: error\n" if endpoint is Endpoint.RESPONSES else b""
    pair.decodes[0].fault = Fault(ends=named + b"data: " + json.dumps(event).encode() + b"\n\n")
    answer = pair.client.turn(endpoint, ["hi"], stream=True)
    assert answer.status == 200
    assert b"error" in answer.body
    assert b"kv_transfer_params" not in answer.body
    assert b"10.1.2.3" not in answer.body
