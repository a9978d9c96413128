"""Whose conversation a turn continues: found without any name, never another credential's; and branches."""

import re
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from anthropic import Anthropic

from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import Fault
from toolkit.testing.serving import wait_until

every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))
both_modes = pytest.mark.parametrize("stream", [True, False])
MINE, THEIRS = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer theirs"}


@both_modes
@every_endpoint
def test_an_unmodified_clients_next_turn_is_known_by_its_history(pair, history, endpoint, stream):
    answers = [
        pair.client.turn(endpoint, history(turns), stream=stream, headers={"X-Request-Id": f"turn-{turns}"})
        for turns in (1, 2, 3)
    ]
    assert [answer.status for answer in answers] == [200] * 3
    if endpoint == Endpoint.MESSAGES and stream:
        # Nothing to read: this stream has no place for a handle. Decode's own cache may have it.
        assert [answer.path for answer in answers] == ["prefill"] * 3
        return
    assert [answer.path for answer in answers] == ["prefill", "readback", "readback"]
    # All of the turn before, but for a block that was not full.
    for turn in (1, 2):
        before = pair.decodes[0].seen[turn - 1].params["pd_proof"]["tokens"]
        assert answers[turn].read_tokens == before > 0


@every_endpoint
def test_another_turn_of_the_same_length_is_another_conversation(pair, history, endpoint):
    pair.client.turn(endpoint, history(2))
    other = [f"Not {history(2)[0]}", *history(2)[1:]]
    assert pair.client.turn(endpoint, other).path == "prefill"


@pytest.mark.parametrize("name", ["model", "tools", "cache_salt"])
def test_what_changes_the_prompt_makes_another_conversation(pair, history, name):
    changed = {"model": "other", "cache_salt": "salt", "tools": [{"type": "function"}]}[name]
    pair.client.turn(Endpoint.CHAT, history(1))
    assert pair.client.turn(Endpoint.CHAT, history(2), **{name: changed}).path == "prefill"
    assert pair.client.turn(Endpoint.CHAT, history(2)).path == "readback"


def test_an_edited_history_is_read_as_far_as_it_is_equal(pair, conversation, history):
    pair.client.turn(Endpoint.CHAT, history(3), conversation_id=conversation)
    whole = pair.decodes[0].seen[0].params["pd_proof"]["tokens"]
    texts = history(3)
    edited = [*texts[:2], "Something else", *texts[3:]]
    answer = pair.client.turn(Endpoint.CHAT, edited, conversation_id=conversation)
    assert answer.path == "readback"
    assert 0 < answer.read_tokens < whole


def test_the_openai_library_converses_without_naming_its_conversation(pair, history):
    with openai.OpenAI(base_url=pair.client.url + "/v1", api_key="k", max_retries=0) as client:
        messages = [{"role": "user", "content": history(1)[0]}]
        paths = []
        for _ in range(3):
            raw = client.chat.completions.with_raw_response.create(model="m", messages=messages)
            paths.append(raw.headers["x-kv-path"])
            said = raw.parse().choices[0].message.content
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
        assert paths == ["prefill", "readback", "readback"]
        items = [{"role": "user", "content": history(1)[0]}]
        paths = []
        for _ in range(3):
            raw = client.responses.with_raw_response.create(model="m", input=items)
            paths.append(raw.headers["x-kv-path"])
            items += [item.model_dump() for item in raw.parse().output]
            items.append({"role": "user", "content": "Go on."})
        assert paths == ["prefill", "readback", "readback"]


def test_the_anthropic_library_converses_without_naming_its_conversation(pair, history):
    with Anthropic(base_url=pair.client.url, api_key="k", max_retries=0) as client:
        messages = [{"role": "user", "content": history(1)[0]}]
        paths = []
        for _ in range(3):
            raw = client.messages.with_raw_response.create(model="m", max_tokens=9, messages=messages)
            paths.append(raw.headers["x-kv-path"])
            messages.append({"role": "assistant", "content": raw.parse().content[0].text})
            messages.append({"role": "user", "content": "Go on."})
        assert paths == ["prefill", "readback", "readback"]


# Stored responses.


@both_modes
def test_a_turn_that_names_a_stored_response_goes_to_the_engine_that_has_it(square, stream):
    client = square.client
    firsts = [client.turn(Endpoint.RESPONSES, [f"hello {n}"], headers=MINE) for n in range(4)]
    holders = [first.json["id"].split("_")[1] for first in firsts]
    assert set(holders) == {"D0", "D1"}
    prefilled = len(square.seen("prefills"))
    for first, holder in zip(firsts, holders, strict=True):
        answer = client.turn(
            Endpoint.RESPONSES,
            ["and?"],
            stream=stream,
            headers=MINE,
            previous_response_id=first.json["id"],
        )
        assert (answer.status, answer.path) == (200, "decode-local")
        (engine,) = [engine for engine in square.decodes if engine.name == holder]
        assert engine.seen[-1].body["previous_response_id"] == first.json["id"]
        assert "kv_transfer_params" not in engine.seen[-1].body
    assert len(square.seen("prefills")) == prefilled
    assert client.metric("pd_router_path_total", reason="stored-response") >= 4


@pytest.mark.parametrize("headers", [THEIRS, {}, {"X-Api-Key": "mine"}])
def test_a_stored_response_is_its_credentials_alone(pair, headers):
    made = pair.client.turn(Endpoint.RESPONSES, ["hello"], headers=MINE).json["id"]
    path = f"/v1/responses/{made}"
    seen = len(pair.decodes[0].seen)
    refused = [
        pair.client.turn(Endpoint.RESPONSES, ["and?"], headers=headers, previous_response_id=made),
        pair.client.ask("GET", path, headers=headers),
        pair.client.ask("POST", path + "/cancel", headers=headers),
    ]
    assert [answer.status for answer in refused] == [404] * 3
    assert len(pair.decodes[0].seen) == seen
    assert pair.client.ask("GET", path, headers=MINE).status == 200


@both_modes
def test_a_stored_response_is_given_without_its_metadata(pair, stream):
    made = pair.client.turn(Endpoint.RESPONSES, ["hello"], headers=MINE, stream=stream)
    (named,) = pair.decodes[0].responses
    assert named.encode() in made.body
    kept = pair.client.ask("GET", f"/v1/responses/{named}", headers=MINE)
    assert (kept.status, kept.json["id"]) == (200, named)
    assert b"pd_lease" in pair.decodes[0].responses[named]
    assert b"kv_transfer_params" not in kept.body
    assert kept.json["output"][0]["content"][0]["text"] == "Once upon a time"
    cancelled = pair.client.ask("POST", f"/v1/responses/{named}/cancel", headers=MINE)
    assert (cancelled.status, "Cannot cancel" in cancelled.body.decode()) == (400, True)


@both_modes
def test_a_response_that_is_not_to_be_stored_is_not_known(pair, stream):
    made = pair.client.turn(Endpoint.RESPONSES, ["hello"], store=False, stream=stream)
    (made,) = set(re.findall(rb'"id":"(resp_\w+)"', made.body))
    assert pair.client.ask("GET", f"/v1/responses/{made.decode()}").status == 404
    members = {"previous_response_id": made.decode(), "stream": stream}
    assert pair.client.turn(Endpoint.RESPONSES, ["and?"], **members).status == 404
    assert len(pair.decodes[0].seen) == 1


def test_while_the_engine_that_has_it_is_away_nobody_else_is_asked(own_square):
    stage = own_square(eject_after=1)
    made = stage.client.turn(Endpoint.RESPONSES, ["hello"]).json["id"]
    holder = next(engine for engine in stage.decodes if engine.seen)
    holder.healthy = False
    wait_until(lambda: stage.legs("decode") == 1)
    asked = [len(engine.seen) for engine in stage.engines]

    def both():
        turn = stage.client.turn(Endpoint.RESPONSES, ["and?"], previous_response_id=made)
        return turn.status, stage.client.ask("GET", f"/v1/responses/{made}").status

    assert both() == (503, 503)
    assert [len(engine.seen) for engine in stage.engines] == asked
    holder.healthy = True
    wait_until(lambda: stage.legs("decode") == 2)
    assert both() == (200, 200)


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(reset="head")])
def test_where_the_engine_that_has_it_fails_nobody_else_is_asked(square, fault):
    made = square.client.turn(Endpoint.RESPONSES, ["hello"]).json["id"]
    holder = next(engine for engine in square.decodes if engine.seen)
    holder.fault = fault
    answer = square.client.turn(Endpoint.RESPONSES, ["and?"], previous_response_id=made)
    assert answer.status == (fault.status or 502)
    assert len(square.seen("decodes")) == 2


@pytest.mark.parametrize(
    ("method", "rest", "status"),
    [
        ("GET", "/../../pd/leases", 404),
        ("POST", "/%2e%2e/%2e%2e/pd/leases/release", 404),
        ("GET", "/input_items", 404),
        ("DELETE", "", 405),
        ("GET", "/cancel", 405),
        ("POST", "", 405),
    ],
)
def test_under_a_stored_response_no_other_url_of_the_engine_is_reached(pair, method, rest, status):
    made = pair.client.turn(Endpoint.RESPONSES, ["hello"]).json["id"]
    pair.decodes[0].leases.calls.clear()
    assert pair.client.ask(method, f"/v1/responses/{made}{rest}").status == status
    # The router lets go of what earlier tests left behind at any time, and then names it.
    assert all(call.operation == "release" and call.names for call in pair.decodes[0].leases.calls)


# Credentials.


@every_endpoint
@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key"])
def test_a_history_is_looked_for_among_its_credentials_own(pair, history, endpoint, header):
    def ask(turns, credential):
        return pair.client.turn(endpoint, history(turns), headers={header: credential}).path

    assert ask(1, "mine") == "prefill"
    assert ask(2, "theirs") == "prefill"
    assert pair.client.turn(endpoint, history(2)).path == "prefill"
    assert ask(2, "mine") == "readback"


@every_endpoint
def test_a_name_is_looked_for_among_its_credentials_own(pair, conversation, endpoint):
    def ask(headers):
        return pair.client.turn(endpoint, ["hello"], headers=headers, conversation_id=conversation).path

    assert [ask(MINE), ask(THEIRS), ask({}), ask(MINE)] == ["prefill"] * 3 + ["readback"]


# Branches.


def test_two_next_turns_of_one_history_are_both_read_back(pair, history):
    shared = history(2)
    pair.client.turn(Endpoint.CHAT, shared[:1])
    turns = [[*shared[:2], f"Way {n}?"] for n in range(3)]
    answers = [pair.client.turn(Endpoint.CHAT, turn) for turn in turns]
    assert [answer.path for answer in answers] == ["readback"] * 3
    common = pair.decodes[0].seen[0].params["pd_proof"]["tokens"]
    assert all(answer.read_tokens >= common for answer in answers)
    # A read takes the blocks with it: only of the latest branch decode has still all.
    held = {turn[-1]: pair.decodes[0].seen[1 + number].params for number, turn in enumerate(turns)}
    assert pair.decodes[0].leases.held == [held["Way 2?"]["pd_lease"]]
    answer = pair.client.turn(Endpoint.CHAT, [*turns[2], "Once upon a time", "More?"])
    assert (answer.path, answer.read_tokens) == ("readback", held["Way 2?"]["pd_proof"]["tokens"])


def test_a_branch_whose_handle_the_other_has_read_is_taken_by_decode_alone(own, history):
    """Its prefix cache may have the blocks, until it needs them for others."""
    stage = own(path="auto")
    shared, read = history(2), {"X-KV-Path": "readback"}
    stage.client.turn(Endpoint.CHAT, shared[:1])
    one, two = ([*shared[:2], f"Way {n}?"] for n in range(2))
    assert [stage.client.turn(Endpoint.CHAT, turn, headers=read).path for turn in (one, two)] == [
        "readback"
    ] * 2
    paths = [
        stage.client.turn(Endpoint.CHAT, [*turn, "Once upon a time", "More?"]).path for turn in (one, two)
    ]
    assert paths == ["decode-local"] * 2
    # From then on each has its own handle.
    turns = [[*turn, "Once upon a time", "More?", "Once upon a time", "Yes?"] for turn in (one, two)]
    answers = [stage.client.turn(Endpoint.CHAT, turn, headers=read) for turn in turns]
    assert [answer.path for answer in answers] == ["readback"] * 2


def test_two_next_turns_at_once_never_read_with_one_handle(pair, history):
    shared = history(2)
    pair.client.turn(Endpoint.CHAT, shared[:1])
    pair.prefills[0].fault = Fault(delay_s=0.3)
    turns = [[*shared[:2], f"Way {n}?"] for n in range(2)]
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda turn: pair.client.turn(Endpoint.CHAT, turn), turns))
    assert sorted(answer.path for answer in answers) == ["prefill", "readback"]
    assert sorted(answer.body for answer in answers) == sorted(
        seen.clean for seen in pair.decodes[0].seen[1:]
    )
    pair.prefills[0].fault = Fault()
    nexts = [pair.client.turn(Endpoint.CHAT, [*turn, "Once upon a time", "More?"]) for turn in turns]
    assert [answer.path for answer in nexts] == ["readback"] * 2
    assert len(pair.decodes[0].leases.held) == 2


@both_modes
def test_two_next_turns_at_once_are_both_taken_by_decode_alone(own, history, stream):
    stage = own(path="auto")
    shared = history(2)
    stage.client.turn(Endpoint.CHAT, shared[:1])
    turns = [[*shared[:2], f"Way {n}?"] for n in range(2)]
    stage.decodes[0].token_s = 0.05
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda turn: stage.client.turn(Endpoint.CHAT, turn, stream=stream), turns))
    assert [answer.path for answer in answers] == ["decode-local"] * 2
    assert len(stage.prefills[0].seen) == 1
    assert all(seen.body["kv_transfer_params"] == {"pd_retain": True} for seen in stage.decodes[0].seen[1:])
    # What each left can be read by its own next turn.
    for turn in turns:
        forced = {"X-KV-Path": "readback"}
        answer = stage.client.turn(Endpoint.CHAT, [*turn, "Once upon a time", "More?"], headers=forced)
        (before,) = [
            seen for seen in stage.decodes[0].seen if seen.body["messages"][-1]["content"] == turn[-1]
        ]
        assert (answer.path, answer.read_tokens) == ("readback", before.params["pd_proof"]["tokens"])
    wait_until(lambda: len(stage.decodes[0].leases.held) == 2)
