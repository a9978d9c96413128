"""Engines that are not there, go away, come back, or forget what they held."""

import json

import pytest

from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import FakeEngine, Fault, serve_engine
from toolkit.testing.serving import free_port, wait_until

every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))
both_modes = pytest.mark.parametrize("stream", [True, False])


def dead_url():
    return f"http://127.0.0.1:{free_port()}"


def error_of(response):
    """Of any endpoint's form."""
    error = response.json["error"]
    assert error["message"]
    assert error["type"]
    return error


def test_no_engine_at_all(router):
    client = router([dead_url()], [dead_url()])
    assert client.ask("GET", "/health").status == 503
    for answer in (client.chat(), client.chat(stream=True), client.ask("GET", "/v1/models")):
        assert (answer.status, answer.json["error"]["code"]) == (503, 503)
        assert int(answer.headers["retry-after"]) > 0
        line = client.logged(answer.headers["x-request-id"])
        assert line["failures"] == json.dumps(answer.json["error"]["message"])


@both_modes
@every_endpoint
def test_decode_that_is_gone_before_anybody_noticed(engine, router, endpoint, stream):
    prefill, prefill_url = engine("prefill")
    with serve_engine(FakeEngine("decode", "gone")) as url:
        client = router([prefill_url], [url], health_interval_s=60)
    answer = client.turn(endpoint, ["hello"], stream=stream)
    assert (answer.status, "decode" in error_of(answer)["message"]) == (502, True)
    assert "cannot be reached" in answer.body.decode()
    # It is known now, and costs no prefill.
    asked = len(prefill.seen)
    assert client.turn(endpoint, ["hello"], stream=stream).status == 503
    assert len(prefill.seen) == asked


def test_blocks_that_prefill_was_never_offered_count_as_such(engine, router, conversation):
    _, decode_url = engine("decode")
    with serve_engine(FakeEngine("prefill", "gone")) as url:
        client = router([url], [decode_url], health_interval_s=60)
        assert client.chat(conversation).path == "prefill"
    answer = client.chat(conversation)
    assert (answer.status, answer.path) == (200, "decode-local")
    line = client.logged(answer.headers["x-request-id"])
    assert (line["reason"], line["readback"]) == ("prefill-away", "none")
    assert client.metric("pd_router_readback_total", outcome="unknown") == 0


@both_modes
@every_endpoint
@pytest.mark.parametrize("noticed", [True, False])
def test_without_prefill_decode_computes_alone(engine, router, endpoint, stream, noticed):
    decode, decode_url = engine("decode")
    with serve_engine(FakeEngine("prefill", "gone")) as url:
        client = router([url], [decode_url], health_interval_s=0.05 if noticed else 60, eject_after=1)
    if noticed:
        wait_until(lambda: not client.ask("GET", "/health").json["prefill"][0]["healthy"])
    answer = client.turn(endpoint, ["hello"], stream=stream, headers={"X-Request-Id": "alone"})
    assert (answer.status, answer.path) == (200, "decode-local")
    assert answer.body == decode.seen[0].clean
    params = decode.seen[0].body.get("kv_transfer_params") or {}
    assert "do_remote_prefill" not in params
    assert client.metric("pd_router_path_total", path="decode-local", reason="prefill-away") == 1


@pytest.mark.parametrize("noticed", [True, False])
def test_where_decode_must_not_compute_alone_the_client_is_told_and_the_handle_kept(
    engine, router, conversation, noticed
):
    decode, decode_url = engine("decode")
    prefill = FakeEngine("prefill", "goes")
    with serve_engine(prefill) as url:
        settings = {"health_interval_s": 0.05 if noticed else 60, "decode_alone": False}
        client = router([url], [decode_url], **settings)
        client.chat(conversation)
    if noticed:
        wait_until(lambda: not client.ask("GET", "/health").json["prefill"][0]["healthy"])
    answer = client.chat(conversation)
    assert answer.status == (503 if noticed else 502)
    assert "prefill" in error_of(answer)["message"]
    assert len(decode.seen) == 1
    assert len(decode.leases.held) == 1
    assert client.metric("pd_router_handles_total", event="returned") == 1
    if noticed:
        with serve_engine(prefill, port=int(url.rpartition(":")[2])):
            wait_until(lambda: client.ask("GET", "/health").status == 200)
            assert client.chat(conversation).path == "readback"


def test_a_dead_leg_gets_no_traffic_and_a_living_one_does(engine, router, conversation):
    (_, prefill_url), (decode, decode_url) = engine("prefill"), engine("decode")
    client = router([dead_url(), prefill_url], [decode_url, dead_url()])
    assert [client.chat(conversation).status for _ in range(4)] == [200] * 4
    assert len(decode.seen) == 4
    health = client.ask("GET", "/health")
    assert [leg["healthy"] for leg in health.json["prefill"]] == [False, True]
    assert health.status == 200


def test_an_unhealthy_leg_is_ejected_and_comes_back(own_square, conversation):
    stage = own_square(eject_after=2)
    stage.client.chat(conversation)
    holder = next(engine for engine in stage.decodes if engine.seen)
    holder.healthy = False
    wait_until(lambda: stage.legs("decode") == 1)
    # Its handle would make prefill wait for an engine that is gone: the turn is computed cold elsewhere.
    answer = stage.client.chat(conversation)
    assert (answer.status, answer.path) == (200, "prefill")
    assert len(holder.seen) == 1
    holder.healthy = True
    wait_until(lambda: stage.legs("decode") == 2)
    assert stage.client.chat(conversation).path == "readback"


def test_a_leg_whose_answers_fail_is_ejected_although_its_health_is_good(own_square):
    stage = own_square(eject_after=2)
    broken = stage.decodes[0]
    broken.fault = Fault(status=500)
    assert [stage.client.complete().status for _ in range(8)] == [200] * 8
    assert len(broken.seen) == 2
    assert stage.legs("decode") == 1


@both_modes
@pytest.mark.parametrize("fault", [Fault(status=503), Fault(reset="head")])
def test_where_the_only_prefill_engine_fails_every_request_decode_computes_alone(own, fault, stream):
    """Its health check is good all the time."""
    stage = own(eject_after=2)
    stage.prefills[0].fault = fault
    answers = [stage.client.complete(stream=stream) for _ in range(4)]
    assert [answer.status for answer in answers] == [503 if fault.status else 502] * 2 + [200] * 2
    assert [answer.path for answer in answers[2:]] == ["decode-local"] * 2
    assert stage.client.metric("pd_router_path_total", path="decode-local", reason="prefill-away") == 2


PLAIN = pytest.mark.parametrize(
    ("method", "path", "body"), [("GET", "/v1/models", None), ("POST", "/tokenize", {"prompt": "x"})]
)


@PLAIN
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_what_any_engine_answers_is_asked_of_another_one_when_it_dies(
    engine, router, role, method, path, body
):
    urls = {each: [engine(each)[1]] for each in ("prefill", "decode")}
    with serve_engine(FakeEngine(role, "gone")) as gone:
        urls[role].insert(0, gone)
        client = router(urls["prefill"], urls["decode"], health_interval_s=60)
    answers = [client.ask(method, path, body) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    asked = role == ("decode" if path == "/v1/models" else "prefill")
    assert client.metric("pd_router_retries_total") == asked


@PLAIN
def test_a_failure_of_all_engines_is_theirs_and_no_refusal(router, method, path, body):
    with serve_engine(FakeEngine("prefill")) as prefill, serve_engine(FakeEngine("decode")) as decode:
        client = router([prefill], [decode], health_interval_s=60)
    answer = client.ask(method, path, body)
    assert answer.status == 502
    assert client.logged(answer.headers["x-request-id"])["outcome"] == "engine-error"
    assert client.metric("pd_router_refusals_total", status="502") == 0


@both_modes
def test_an_expired_lease_is_not_read_and_costs_only_the_read(pair, conversation, stream):
    pair.client.chat(conversation)
    decode = pair.decodes[0]
    decode.leases.states[decode.seen[0].params["pd_lease"]] = "expired"
    answer = pair.client.chat(conversation, stream=stream, headers={"X-Request-Id": "expired"})
    assert (answer.status, answer.path, answer.headers["x-kv-read-tokens"]) == (200, "readback", "0")
    assert answer.body == decode.seen[1].clean
    assert pair.client.logged("expired")["readback"] == "declined"
    assert pair.client.chat(conversation).read_tokens == 32


def test_a_restarted_decode_engine_is_noticed_by_its_id_and_what_it_held_is_forgotten(own):
    stage = own()
    decode, client = stage.decodes[0], stage.client
    assert [client.chat(name).path for name in ("a", "b", "a")] == ["prefill", "prefill", "readback"]
    decode.restart("second-life")
    # The first turn after it finds out; that it was offered an old handle costs only the read.
    answer = client.chat("a")
    assert (answer.status, answer.path, answer.read_tokens) == (200, "readback", 0)
    assert [client.chat(name).path for name in ("b", "a")] == ["prefill", "readback"]
    assert client.metric("pd_router_conversations") == 2


def test_handles_expire_in_the_router_before_they_do_in_decode(own, conversation):
    stage = own(ttl_s=0.3)
    stage.client.chat(conversation)
    wait_until(lambda: stage.client.metric("pd_router_conversations") == 0)
    assert stage.client.chat(conversation).path == "prefill"


def test_a_thousand_conversations_do_not_outgrow_the_map(own):
    stage = own(max_conversations=5)
    for number in range(12):
        stage.client.chat(f"c{number}")
    assert stage.client.metric("pd_router_conversations") == 5
    assert stage.client.chat("c0").path == "prefill"
    assert stage.client.chat("c11").path == "readback"
