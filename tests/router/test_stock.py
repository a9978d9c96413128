"""Engines without our connector: handles prove nothing and have no lease. So nothing is read back, and decode
is asked to keep nothing that nobody could let go of."""

import pytest

from toolkit.router.request.bodies import MISS_PARAMS
from toolkit.router.request.dialects import Endpoint
from toolkit.testing.serving import wait_until

every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))
both_modes = pytest.mark.parametrize("stream", [True, False])
TOKENS = list(range(1000, 1600))


@pytest.fixture
def stock(bare, own):
    """Both engines without the connector."""
    for engine in bare.engines:
        engine.stock = True
    return own


def handles(stage):
    """What prefill was offered to read, per request; None: nothing."""
    given = [seen.body["kv_transfer_params"] for seen in stage.prefills[0].seen]
    return [None if params == MISS_PARAMS else params for params in given]


@both_modes
@every_endpoint
def test_text_is_never_read_back_however_it_goes_on(stock, history, endpoint, stream):
    """A tokenizer may join what one turn ends with to what the next begins with."""
    stage = stock()
    answers = [stage.client.turn(endpoint, history(turns), stream=stream) for turns in (1, 2, 3)]
    assert [(answer.status, answer.path) for answer in answers] == [(200, "prefill")] * 3
    assert handles(stage) == [None] * 3
    assert [answer.body for answer in answers] == [seen.clean for seen in stage.decodes[0].seen]


@pytest.mark.parametrize("headers", [{}, {"X-KV-Path": "readback"}])
@pytest.mark.parametrize("named", [True, False])
def test_nor_are_tokens_for_the_handle_covers_the_answer_and_that_may_be_another(
    stock, conversation, headers, named
):
    """The prompt goes on exactly, but what was answered in between is not known to be repeated in it."""
    stage = stock()
    members = {"conversation_id": conversation} if named else {}
    answers = [
        stage.client.complete(prompt=TOKENS[: 200 * turn], headers=headers, **members) for turn in (1, 2, 3)
    ]
    assert [(answer.status, answer.path) for answer in answers] == [(200, "prefill")] * 3
    assert handles(stage) == [None] * 3


@both_modes
@every_endpoint
def test_what_decode_computes_alone_carries_no_parameters(stock, history, endpoint, stream):
    stage = stock(path="auto")
    answers = [stage.client.turn(endpoint, history(turns), stream=stream) for turns in (1, 2, 3)]
    assert [answer.path for answer in answers] == ["prefill", "decode-local", "decode-local"]
    # A stock engine that gets any parameters keeps the blocks for good.
    assert all("kv_transfer_params" not in seen.body for seen in stage.decodes[0].seen[1:])
    assert stage.decodes[0].stranded == 0


def test_why_a_long_turn_is_computed_anew_is_told(stock, history):
    stage = stock(path="auto", decode_local_tokens=0)
    for turns in (1, 2):
        assert stage.client.turn(Endpoint.CHAT, history(turns)).path == "prefill"
    assert stage.client.metric("pd_router_path_total", path="prefill", reason="unproven-history") == 1


@pytest.mark.parametrize("members", [{"n": 2}, {"headers": {"X-KV-Path": "decode-local"}}])
def test_nor_does_what_a_client_sends_to_decode_alone(stock, history, members):
    stage = stock()
    assert stage.client.turn(Endpoint.CHAT, history(1), **members).path == "decode-local"
    assert "kv_transfer_params" not in stage.decodes[0].seen[0].body


def test_without_prefill_decode_gets_no_parameters_either(stock, history):
    stage = stock(eject_after=1)
    stage.prefills[0].healthy = False
    wait_until(lambda: stage.legs("prefill") == 0)
    assert stage.client.turn(Endpoint.CHAT, history(1)).path == "decode-local"
    assert "kv_transfer_params" not in stage.decodes[0].seen[0].body


def test_where_nobody_comes_back_decode_is_told_what_a_stock_engine_ignores(stock):
    stage = stock()
    stage.client.complete()
    prefill, decode = stage.prefills[0].seen[0], stage.decodes[0].seen[0]
    assert decode.body["kv_transfer_params"] == {**prefill.params, "pd_retain": False}


def test_no_lease_route_is_asked_for_but_to_find_out(stock, conversation):
    stage = stock()
    for turn in (1, 2, 3):
        stage.client.complete(conversation, prompt=TOKENS[: 200 * turn])
    assert stage.decodes[0].leases.calls == []
    assert stage.client.metric("pd_router_leases_total") == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_engine_with_the_connector_and_one_without_answer_right(bare, own, history, role):
    {"prefill": bare.prefills, "decode": bare.decodes}[role][0].stock = True
    stage = own()
    answers = [stage.client.turn(Endpoint.CHAT, history(turns)) for turns in (1, 2, 3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert [answer.body for answer in answers] == [seen.clean for seen in stage.decodes[0].seen]
    assert {answer.read_tokens for answer in answers} == {0}
    # Decode's handle offers nothing to an engine that cannot prove it, and a stock one's is not sent.
    assert all(params is None or params["remote_num_tokens"] == 0 for params in handles(stage))
