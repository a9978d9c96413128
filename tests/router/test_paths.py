"""Which way a turn takes and why: what the client and the deployment force, and what `auto` chooses; in the
answer, the log and the metrics."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.router.conftest import body_of
from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import Fault
from toolkit.testing.serving import wait_until

every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))
both_modes = pytest.mark.parametrize("stream", [True, False])
LONG = "A long question about everything there is. " * 100


@pytest.fixture
def auto(own):
    return own(path="auto")


@pytest.fixture
def reasons(auto):
    """The reasons of some turns: `reasons()` -> {(path, reason): count}."""
    paths = ("prefill", "readback", "decode-local")

    def read():
        client = auto.client
        named = ["new", "short-suffix", "long-suffix", "forced", "forced-unavailable", "no-handle"]
        named += ["not-transferable", "decode-busy", "decode-away", "measured", "probe", "prefill-away"]
        counts = {
            (path, reason): client.metric("pd_router_path_total", path=path, reason=reason)
            for path in paths
            for reason in named
        }
        return {key: count for key, count in counts.items() if count}

    return read


@both_modes
@every_endpoint
def test_a_short_next_turn_is_taken_by_decode_alone(auto, reasons, history, endpoint, stream):
    answers = [
        auto.client.turn(endpoint, history(turns), stream=stream, headers={"X-Request-Id": f"short-{turns}"})
        for turns in (1, 2, 3)
    ]
    assert [answer.path for answer in answers] == ["prefill", "decode-local", "decode-local"]
    assert [answer.body for answer in answers] == [seen.clean for seen in auto.decodes[0].seen]
    assert len(auto.prefills[0].seen) == 1
    assert reasons() == {("prefill", "new"): 1, ("decode-local", "short-suffix"): 2}
    tells = not (endpoint == Endpoint.MESSAGES and stream)
    asked = [seen.body.get("kv_transfer_params") for seen in auto.decodes[0].seen[1:]]
    assert asked == [{"pd_retain": True} if tells else None] * 2
    line = auto.client.logged("short-3")
    assert (line["path"], line["reason"], line["identity"]) == ("decode-local", "short-suffix", "automatic")
    assert int(line["held_tokens"]) > int(line["suffix_tokens"]) >= 0
    # Of what each turn has superseded nothing is held any more.
    wait_until(lambda: len(auto.decodes[0].leases.held) == tells)


@both_modes
@every_endpoint
def test_a_long_next_turn_is_read_back(auto, reasons, history, endpoint, stream):
    first = history(1)
    auto.client.turn(endpoint, first)
    answer = auto.client.turn(endpoint, [*first, "Once upon a time", LONG], stream=stream)
    assert (answer.path, answer.read_tokens > 0) == ("readback", True)
    assert reasons() == {("prefill", "new"): 1, ("readback", "long-suffix"): 1}
    assert auto.client.metric("pd_router_readback_total", outcome="hit") == 1


@pytest.mark.parametrize("identity", ["automatic", "name", "header"])
@every_endpoint
def test_a_turn_of_another_history_is_long_however_much_the_conversation_holds(
    auto, reasons, history, endpoint, identity
):
    """A branch from the first turn, or another text under one name, whose length is that of what is held."""
    members = {"conversation_id": "mine"} if identity == "name" else {}
    headers = {"X-Session-Id": "mine"} if identity == "header" else {}
    first = history(1)

    def turn(*texts):
        asked = {**headers, "X-Request-Id": f"{len(auto.decodes[0].seen)}"}
        answer = auto.client.turn(endpoint, [*first, *texts], headers=asked, **members)
        assert answer.status == 200
        return auto.client.logged(asked["X-Request-Id"])

    turn()
    held = turn("Once upon a time", LONG)
    other = turn("Once upon a time", LONG.upper())
    assert [line["path"] for line in (held, other)] == ["readback", "readback"]
    assert reasons() == {("prefill", "new"): 1, ("readback", "long-suffix"): 2}
    # Of the other branch's 4,400 bytes nothing counts as held.
    assert int(other["held_tokens"]) < 400
    assert int(other["suffix_tokens"]) > 1000
    # The first turn again is all held; what comes after that is short again.
    again = turn()
    assert (again["path"], int(again["suffix_tokens"])) == ("decode-local", 0)
    assert turn("Once upon a time", "And then?")["path"] == "decode-local"


def test_a_branch_with_little_in_common_leaves_the_handle_to_the_other(auto, reasons):
    def ask(*texts):
        return auto.client.turn(Endpoint.CHAT, texts)

    first = f"Hello {uuid.uuid4().hex}"
    ask(first)
    ask(first, "Once upon a time", LONG)
    forks = [ask(first, "Once upon a time", f"{number} {LONG}") for number in range(3)]
    assert [fork.path for fork in forks] == ["prefill"] * 3
    assert reasons()["prefill", "no-handle"] == 3
    kept = ask(first, "Once upon a time", LONG, "Once upon a time", LONG)
    assert (kept.path, kept.read_tokens > 0) == ("readback", True)


def test_an_edited_history_of_a_name_is_read_as_far_as_it_is_equal(auto, reasons):
    """Where an edit stands is not known, but it may come late. Nobody else could use the handle."""
    texts = [f"{uuid.uuid4().hex} {LONG}", "Once upon a time", LONG]
    auto.client.turn(Endpoint.CHAT, texts, conversation_id="mine")
    answer = auto.client.turn(Endpoint.CHAT, [*texts[:2], LONG.upper()], conversation_id="mine")
    assert (answer.path, answer.read_tokens > 500) == ("readback", True)
    assert reasons() == {("prefill", "new"): 1, ("readback", "long-suffix"): 1}


def test_the_limits_of_what_decode_computes_alone(own, history):
    stage = own(path="auto", decode_local_tokens=0)
    stage.client.turn(Endpoint.CHAT, history(1))
    assert stage.client.turn(Endpoint.CHAT, history(2)).path == "readback"


def test_a_busy_decode_engine_is_spared(own, history):
    stage = own(path="auto", decode_local_tokens=400, decode_local_pending_tokens=400)
    decode, client = stage.decodes[0], stage.client
    middle = "A middling question, of some length. " * 25
    names = ("one", "two")
    for name in names:
        client.turn(Endpoint.CHAT, history(1), conversation_id=name)
    decode.fault = Fault(delay_s=0.4, only=1)
    turn = [*history(1), "Once upon a time", middle]
    connection = client.send("POST", Endpoint.CHAT, body_of(Endpoint.CHAT, turn, conversation_id="one"))
    wait_until(lambda: len(decode.seen) == 3)
    assert client.metric("pd_router_leg_pending_tokens", role="decode") > 0
    assert client.turn(Endpoint.CHAT, turn, conversation_id="two").path == "readback"
    assert connection.getresponse().getheader("x-kv-path") == "decode-local"
    connection.close()
    assert client.metric("pd_router_path_total", path="readback", reason="decode-busy") == 1
    assert client.metric("pd_router_leg_pending_tokens", role="decode") == 0


@pytest.mark.parametrize("forced", ["prefill", "readback", "decode-local", " ReadBack "])
def test_the_client_may_force_a_path(auto, reasons, history, forced):
    auto.client.turn(Endpoint.CHAT, history(1))
    answer = auto.client.turn(Endpoint.CHAT, history(2), headers={"X-KV-Path": forced})
    assert (answer.status, answer.path) == (200, forced.strip().lower())
    assert reasons() == {("prefill", "new"): 1, (answer.path, "forced"): 1}
    # It is the router's, not the engines'.
    assert all("x-kv-path" not in seen.headers for seen in auto.decodes[0].seen)


def test_a_read_that_cannot_be_forced_is_a_prefill(auto, reasons, history):
    answer = auto.client.turn(Endpoint.CHAT, history(1), headers={"X-KV-Path": "readback"})
    assert (answer.status, answer.path) == (200, "prefill")
    assert reasons() == {("prefill", "forced-unavailable"): 1}


def test_decode_may_be_forced_to_compute_a_first_turn(auto, reasons, history):
    answer = auto.client.turn(Endpoint.CHAT, history(1), headers={"X-KV-Path": "decode-local"})
    assert (answer.status, answer.path) == (200, "decode-local")
    assert auto.prefills[0].seen == []
    # What it keeps can be read by the next turn.
    answer = auto.client.turn(Endpoint.CHAT, history(2), headers={"X-KV-Path": "readback"})
    assert (answer.path, answer.read_tokens > 0) == ("readback", True)
    assert reasons() == {("decode-local", "forced"): 1, ("readback", "forced"): 1}


@pytest.mark.parametrize("path", ["prefill", "readback", "decode-local"])
def test_the_deployment_may_force_a_path_and_a_client_goes_first(own, history, path):
    stage = own(path=path)
    stage.client.turn(Endpoint.CHAT, history(1))
    assert stage.client.turn(Endpoint.CHAT, history(2)).path == path
    other = "prefill" if path == "decode-local" else "decode-local"
    assert stage.client.turn(Endpoint.CHAT, history(3), headers={"X-KV-Path": other}).path == other


@pytest.mark.parametrize("bad", ["", "auto", "both", "prefill,readback", "\xe9"])
def test_a_path_that_is_none_is_refused(pair, bad):
    answer = pair.client.chat(headers={"X-KV-Path": bad.encode("latin-1")})
    assert answer.status == (400 if bad else 200)
    if bad:
        assert answer.json["error"]["param"] == "x-kv-path"
        assert "decode-local" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("endpoint", "members"),
    [
        (Endpoint.CHAT, {"n": 2}),
        (Endpoint.CHAT, {"prompt_logprobs": 1}),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"]}),
        (Endpoint.COMPLETIONS, {"use_beam_search": True, "n": 2}),
        (Endpoint.RESPONSES, {"background": True}),
        (Endpoint.MESSAGES, {"tool_choice": {"type": "tool", "name": "f"}}),
    ],
)
def test_what_cannot_be_handed_over_is_decodes_alone(auto, reasons, history, endpoint, members):
    auto.client.turn(endpoint, history(1))
    answer = auto.client.turn(endpoint, history(2), **{"headers": {"X-KV-Path": "readback"}, **members})
    assert (answer.status, answer.path) == (200, "decode-local")
    assert "kv_transfer_params" not in auto.decodes[0].seen[1].body
    assert reasons() == {("prefill", "new"): 1, ("decode-local", "not-transferable"): 1}
    # The conversation goes on as if nothing had been.
    assert auto.client.turn(endpoint, history(2), headers={"X-KV-Path": "readback"}).path == "readback"


def test_a_conversation_whose_decode_engine_is_away_is_computed_elsewhere(own_square, history):
    stage = own_square(path="auto", eject_after=1)
    stage.client.turn(Endpoint.CHAT, history(1))
    holder = next(engine for engine in stage.decodes if engine.seen)
    holder.healthy = False
    wait_until(lambda: stage.legs("decode") == 1)
    assert stage.client.turn(Endpoint.CHAT, history(2)).path == "prefill"
    assert stage.client.metric("pd_router_path_total", path="prefill", reason="decode-away") == 1
    # It lives at the other one now, and the first one's blocks are let go of.
    assert stage.client.turn(Endpoint.CHAT, history(3)).path == "decode-local"
    assert len(holder.seen) == 1
    wait_until(lambda: holder.leases.held == [])


def test_a_path_that_was_measured_to_be_slower_is_not_taken(auto, reasons, history):
    client, decode = auto.client, auto.decodes[0]
    for number in range(3):
        client.turn(Endpoint.CHAT, [f"{number} {history(1)[0]}"], conversation_id=f"c{number}", stream=True)
    decode.fault = Fault(delay_s=0.25)
    for number in range(3):
        turn = [f"{number} {history(1)[0]}", "Once upon a time", "And then what happened?"]
        assert client.turn(Endpoint.CHAT, turn, conversation_id=f"c{number}", stream=True).path == (
            "decode-local"
        )
    decode.fault = Fault()
    # Decode alone takes a quarter of a second, prefill and the pull some milliseconds.
    turn = [
        f"0 {history(1)[0]}",
        "Once upon a time",
        "And then what happened?",
        "Once upon a time",
        "Go on, please.",
    ]
    assert client.turn(Endpoint.CHAT, turn, conversation_id="c0", stream=True).path != "decode-local"
    assert sum(count for (path, reason), count in reasons().items() if reason == "measured") == 1


def test_an_engine_that_does_not_hold_the_conversation_computes_all_of_it(own_square, history):
    """It is that busy, and how long it took tells nothing of what a few new tokens cost."""
    stage = own_square(path="auto", eject_after=1)
    client, (holder, other) = stage.client, stage.decodes

    def only(engine):
        for each in stage.decodes:
            each.healthy = each is engine
        wanted = [each.healthy for each in stage.decodes]
        wait_until(lambda: [leg["healthy"] for leg in client.ask("GET", "/health").json["decode"]] == wanted)

    def turn(number, turns, **more):
        texts = [f"{number} {text}" for text in history(turns)]
        return client.turn(Endpoint.CHAT, texts, conversation_id=f"c{number}", stream=True, **more)

    only(holder)
    for number in range(3):
        turn(number, 1)
    only(other)
    other.fault = Fault(delay_s=0.25)
    pending = []
    for number in range(3):
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(turn, number, 2, headers={"X-KV-Path": "decode-local"})
            wait_until(lambda number=number: len(other.seen) > number)
            pending.append(client.metric("pd_router_leg_pending_tokens", role="decode"))
            assert answer.result().path == "decode-local"
    assert min(pending) > 100
    other.fault = Fault()
    assert turn(0, 3).path == "decode-local"
    assert client.metric("pd_router_path_total", path="decode-local", reason="short-suffix") == 1


@pytest.mark.parametrize("first", ["decode-local", "readback"])
def test_why_a_second_try_takes_another_path_is_told(own_square, history, first):
    stage = own_square(path="auto", decode_local_tokens=512 if first == "decode-local" else 0)
    stage.client.turn(Endpoint.CHAT, history(1))
    failing = next(each for each in stage.decodes if each.seen)
    failing.fault = Fault(status=500, only=1)
    answer = stage.client.turn(Endpoint.CHAT, history(2), headers={"X-Request-Id": f"again-{first}"})
    assert (answer.status, answer.path) == (200, "prefill")
    line = stage.client.logged(f"again-{first}")
    assert (line["path"], line["reason"], line["retries"]) == ("prefill", "retry", "1")
