"""What the router does with the leases of decode's handles: claims what is about to be read, renews what may
be read later, lets go of what nobody can name any more."""

import pytest

from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import Fault
from toolkit.testing.serving import wait_until

both_modes = pytest.mark.parametrize("stream", [True, False])


def asked(engine, operation):
    """The names that the engine was asked about, in order."""
    return [name for call in engine.leases.calls if call.operation == operation for name in call.names]


def lease_of(engine, turn):
    return engine.seen[turn].params["pd_lease"]


@both_modes
def test_a_lease_is_claimed_before_it_is_read(pair, conversation, stream):
    decode = pair.decodes[0]
    pair.client.chat(conversation, stream=stream)
    first = lease_of(decode, 0)
    pair.prefills[0].fault = Fault(hang="answer", only=1)
    connection = pair.client.send(
        "POST", Endpoint.CHAT, {"model": "m", "messages": [], "conversation_id": conversation}
    )
    # While prefill works on it.
    wait_until(lambda: asked(decode, "claim") == [first])
    connection.close()
    wait_until(lambda: asked(decode, "release") == [first])


def test_claims_can_be_switched_off(own, conversation):
    stage = own(claim=False)
    stage.client.chat(conversation)
    assert stage.client.chat(conversation).read_tokens == 32
    assert asked(stage.decodes[0], "claim") == []


def test_what_was_read_is_neither_held_nor_released(own, conversation):
    stage = own()
    decode = stage.decodes[0]
    for _ in range(3):
        stage.client.chat(conversation)
    assert [decode.leases.states[lease_of(decode, turn)] for turn in range(3)] == ["read", "read", "held"]
    assert asked(decode, "release") == []
    wait_until(lambda: asked(decode, "claim") == [lease_of(decode, 0), lease_of(decode, 1)])


@pytest.mark.parametrize("path", ["prefill", "decode-local"])
def test_what_a_newer_turn_supersedes_is_released(own, conversation, path):
    stage = own(path=path)
    decode = stage.decodes[0]
    for _ in range(3):
        stage.client.chat(conversation)
    wait_until(lambda: asked(decode, "release") == [lease_of(decode, 0), lease_of(decode, 1)])
    assert decode.leases.held == [lease_of(decode, 2)]
    wait_until(lambda: stage.client.metric("pd_router_leases_total", event="released") == 2)


def test_what_is_evicted_is_released(own):
    stage = own(max_conversations=2)
    decode = stage.decodes[0]
    for number in range(4):
        stage.client.chat(f"c{number}")
    wait_until(lambda: sorted(asked(decode, "release")) == sorted(lease_of(decode, n) for n in (0, 1)))
    assert decode.leases.held == [lease_of(decode, 2), lease_of(decode, 3)]


def test_what_is_too_old_is_released(own, conversation):
    stage = own(ttl_s=0.2)
    decode = stage.decodes[0]
    stage.client.chat(conversation)
    wait_until(lambda: asked(decode, "release") == [lease_of(decode, 0)])


def test_what_prefill_was_offered_and_did_not_read_is_released(pair, conversation):
    """As by an engine without our connector. Nobody comes back for it: the turn leaves another handle."""
    decode = pair.decodes[0]
    pair.client.chat(conversation)
    pair.prefills[0].stock = True
    answer = pair.client.chat(conversation)
    assert (answer.path, answer.read_tokens) == ("readback", 0)
    wait_until(lambda: decode.leases.states[lease_of(decode, 0)] == "released")
    assert decode.leases.held == [lease_of(decode, 1)]


def test_a_turn_without_prefill_lets_go_of_what_it_supersedes(own, conversation):
    stage = own(eject_after=1)
    decode = stage.decodes[0]
    stage.client.chat(conversation)
    stage.prefills[0].healthy = False
    wait_until(lambda: stage.legs("prefill") == 0)
    assert stage.client.chat(conversation).path == "decode-local"
    wait_until(lambda: decode.leases.held == [lease_of(decode, 1)])


def test_a_lease_that_somebody_waits_for_is_renewed_and_then_read(own, conversation):
    stage = own(ttl_s=1.0, lease_hold_s=60.0)
    decode = stage.decodes[0]
    stage.client.chat(conversation)
    name = lease_of(decode, 0)
    wait_until(lambda: asked(decode, "renew")[:1] == [name])
    # Older than any lease lasts without renewal, it is still read.
    wait_until(lambda: stage.client.metric("pd_router_leases_total", event="renewed") >= 1)
    assert stage.client.chat(conversation).read_tokens == 32


def test_a_lease_that_decode_has_given_up_is_not_offered_again(own, conversation):
    stage = own(path="auto", decode_local_tokens=0, ttl_s=1.0, lease_hold_s=60.0)
    decode = stage.decodes[0]
    stage.client.chat(conversation)
    decode.leases.states[lease_of(decode, 0)] = "given-up"
    wait_until(lambda: stage.client.metric("pd_router_leases_total", event="lost") == 1)
    assert stage.client.chat(conversation).path == "prefill"
    assert stage.client.metric("pd_router_path_total", path="prefill", reason="no-handle") == 1


def test_the_lease_routes_get_the_secret_and_nobody_else(own, conversation, tmp_path):
    file = tmp_path / "lease-secret"
    file.write_text("lease-s3cret\n")
    file.chmod(0o600)
    stage = own(lease_secret_file=file, path="prefill")
    decode = stage.decodes[0]
    decode.leases.secret = "lease-s3cret"
    for _ in range(2):
        stage.client.chat(conversation, headers={"Authorization": "Bearer the-clients"})
    wait_until(lambda: decode.leases.held == [lease_of(decode, 1)])
    used = [call.authorization for call in decode.leases.calls if call.operation != "counts"]
    assert set(used) == {"Bearer lease-s3cret"}
    assert all(seen.headers["authorization"] == "Bearer the-clients" for seen in decode.seen)
    assert "s3cret" not in stage.client.log.read_text()


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
def test_engines_that_refuse_lease_requests_still_serve(own, conversation, status):
    stage = own()
    decode = stage.decodes[0]
    decode.leases.status = status
    answers = [stage.client.chat(conversation) for _ in range(3)]
    assert [answer.read_tokens for answer in answers] == [0, 32, 32]


@pytest.mark.parametrize("path", ["prefill", "decode-local"])
@both_modes
def test_releases_go_with_the_next_turn_where_the_routes_are_closed(own, conversation, caplog, path, stream):
    """Whosever turn it is; the client sees nothing of it."""
    stage = own(path=path)
    decode = stage.decodes[0]
    decode.leases.status = 403
    for _ in range(2):
        stage.client.chat(conversation, stream=stream)
    old, new = lease_of(decode, 0), lease_of(decode, 1)
    wait_until(lambda: "takes lease requests of its own machine only" in caplog.text)
    assert decode.leases.held == [old, new]
    answer = stage.client.chat(f"other-{conversation}", stream=stream)
    assert answer.status == 200
    assert b"pd_release" not in answer.body
    assert decode.seen[2].body["kv_transfer_params"]["pd_release"] == [old]
    assert decode.leases.held == [new, lease_of(decode, 2)]
    wait_until(lambda: stage.client.metric("pd_router_leases_total", event="handed_on") == 1)
    stage.client.chat(f"third-{conversation}", stream=stream)
    assert "pd_release" not in decode.seen[3].body["kv_transfer_params"]


def test_a_request_without_parameters_takes_no_releases_along(own, conversation, caplog):
    """Nothing of it differs from what its client sent."""
    stage = own(path="decode-local")
    decode = stage.decodes[0]
    decode.leases.status = 403
    for _ in range(2):
        stage.client.chat(conversation)
    wait_until(lambda: "takes lease requests of its own machine only" in caplog.text)
    stage.client.chat(n=2)
    assert "kv_transfer_params" not in decode.seen[2].body
    stage.client.chat(f"other-{conversation}")
    assert decode.seen[3].body["kv_transfer_params"]["pd_release"] == [lease_of(decode, 0)]


def test_last_releases_are_sent_before_the_router_ends(bare, start_router, conversation, tmp_path):
    decode = bare.decodes[0]
    with start_router(bare.urls[:1], bare.urls[1:], tmp_path / "access.log", path="prefill") as client:
        for _ in range(2):
            client.chat(conversation)
    assert asked(decode, "release") == [lease_of(decode, 0)]
