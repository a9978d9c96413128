"""Turns of conversations through a real router: paths, fidelity, headers, the other endpoints."""

import pytest

from toolkit.router.request.bodies import MISS_PARAMS
from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import Fault
from toolkit.testing.serving import wait_until

HANDLE_KEYS = {"remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host"}


def leaks(response):
    return [key for key in (*HANDLE_KEYS, "kv_transfer_params") if key.encode() in response.body]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
@pytest.mark.parametrize("native", [True, False])
def test_a_second_turn_reads_back_what_the_first_left(pair, conversation, stream, endpoint, native):
    ask = getattr(pair.client, endpoint)
    pair.decodes[0].native = native
    turns = [ask(conversation, stream=stream) for _ in range(3)]
    assert [turn.status for turn in turns] == [200, 200, 200]
    assert [turn.path for turn in turns] == ["prefill", "readback", "readback"]
    assert [turn.headers["x-kv-read-tokens"] for turn in turns] == ["0", "32", "32"]

    prefill, decode = pair.prefills[0].seen, pair.decodes[0].seen
    assert prefill[0].body["kv_transfer_params"] == MISS_PARAMS
    for turn in (1, 2):
        left = decode[turn - 1].params
        assert prefill[turn].body["kv_transfer_params"] == left
        assert (left["do_remote_decode"], left["do_remote_prefill"]) == (True, False)
    for turn, answer in enumerate(turns):
        assert decode[turn].body["kv_transfer_params"] == prefill[turn].params
        assert answer.body == decode[turn].clean
        assert leaks(answer) == []
        assert float(answer.headers["x-prefill-ms"]) >= 0
    assert [seen.body["stream"] for seen in decode] == [stream] * 3
    assert all(seen.body["max_tokens"] == 1 and seen.body["stream"] is False for seen in prefill)
    assert all("conversation_id" not in seen.body for seen in (*prefill, *decode))


@pytest.mark.parametrize("header", ["X-Conversation-Id", "X-Session-Id", "X-Correlation-Id"])
def test_headers_name_a_conversation_too(pair, conversation, header):
    paths = [pair.client.chat(headers={header: conversation}).path for _ in range(2)]
    assert paths == ["prefill", "readback"]


def test_prompt_cache_key_names_a_conversation_that_nothing_else_does_and_stays_in_the_body(
    pair, conversation
):
    paths = [pair.client.complete(prompt_cache_key=conversation).path for _ in range(2)]
    assert paths == ["prefill", "readback"]
    assert pair.decodes[0].seen[0].body["prompt_cache_key"] == conversation


def test_prompt_cache_key_does_not_make_one_conversation_of_two_histories(pair, conversation, history):
    def ask(turns):
        return pair.client.turn(Endpoint.CHAT, turns, prompt_cache_key=conversation).path

    first, other = history(2), ["Another one", *history(2)[1:]]
    assert [ask(first[:1]), ask(other[:1]), ask(first), ask(other)] == ["prefill"] * 2 + ["readback"] * 2


def test_a_request_without_a_conversation_keeps_nothing(pair):
    assert [pair.client.complete().path for _ in range(2)] == ["prefill", "prefill"]
    for prefill, decode in zip(pair.prefills[0].seen, pair.decodes[0].seen, strict=True):
        assert decode.body["kv_transfer_params"] == {**prefill.params, "pd_retain": False}


def test_a_conversation_belongs_to_its_credential(pair, conversation):
    mine, theirs = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer theirs"}
    assert pair.client.chat(conversation, headers=mine).path == "prefill"
    assert pair.client.chat(conversation, headers=theirs).path == "prefill"
    assert pair.client.chat(conversation).path == "prefill"
    assert pair.client.chat(conversation, headers=mine).path == "readback"


@pytest.mark.parametrize("stream", [True, False])
def test_several_choices_go_to_decode_alone_and_keep_nothing(pair, conversation, stream):
    first = pair.client.chat(conversation)
    several = pair.client.chat(conversation, n=2, stream=stream)
    assert (several.status, several.path) == (200, "decode-local")
    assert len(pair.prefills[0].seen) == 1
    assert "kv_transfer_params" not in pair.decodes[0].seen[1].body
    assert several.body == pair.decodes[0].seen[1].clean
    # The handle of the conversation was not touched by it.
    assert (first.path, pair.client.chat(conversation).path) == ("prefill", "readback")


def test_a_whole_answer_keeps_every_field_of_the_engine(pair, conversation):
    answer = pair.client.chat(conversation).json
    message = answer["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert {"reasoning", "content", "role"} <= set(message)
    assert answer["choices"][0]["stop_reason"] is None
    assert answer["usage"]["prompt_tokens"] == 37


def test_the_text_of_a_stream_does_not_end_it(pair, conversation):
    pair.decodes[0].tokens = ("A", "data: [DONE]\n\n", '"kv_transfer_params":{"x":1}', "B")
    answer = pair.client.chat(conversation, stream=True)
    assert answer.body == pair.decodes[0].seen[0].clean
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-engine"] == "D0"
    assert pair.client.chat(conversation).path == "readback"


def test_events_arrive_while_the_engine_still_generates(pair, conversation):
    pair.decodes[0].token_s = 0.05
    connection = pair.client.send(
        "POST", "/v1/chat/completions", {"messages": [], "stream": True, "conversation_id": conversation}
    )
    answer = connection.getresponse()
    first = answer.readline()
    assert first.startswith(b"data: {")
    assert pair.decodes[0].seen[0].ended == "running"
    answer.read()
    connection.close()


@pytest.mark.parametrize("stock", [True, False])
def test_where_prefill_kept_nothing_decode_pulls_nothing(own, engine, conversation, stock):
    decode, _ = engine("decode")
    decode.stock = stock
    stage = own()
    stage.prefills[0].fault = Fault(without_params=True)
    assert stage.client.chat(conversation).status == 200
    # One without our connector would keep the blocks for good.
    asked = None if stock else {"pd_retain": True}
    assert decode.seen[0].body.get("kv_transfer_params") == asked
    assert decode.stranded == 0


def test_turns_return_to_the_decode_engine_that_holds_them(square):
    for number in range(6):
        name = f"sticky-{number}"
        for _ in range(3):
            assert square.client.chat(name, stream=True).status == 200
    by_engine = [len(engine.seen) for engine in square.decodes]
    assert by_engine == [9, 9]
    assert sum(len(engine.seen) for engine in square.prefills) == 18
    assert all(engine.seen for engine in square.prefills)


def test_end_to_end_headers_reach_both_engines(pair, conversation):
    sent = {
        "Authorization": "Bearer key",
        "traceparent": "00-1-2-01",
        "X-Custom": "yes",
        "X-Name": "Zoë".encode(),
        "X-Request-Id": "mine-1",
        "Connection": "close, X-Hop",
        "X-Hop": "no",
    }
    answer = pair.client.chat(conversation, headers=sent)
    assert answer.headers["x-request-id"] == "mine-1"
    for seen in (pair.prefills[0].seen[0], pair.decodes[0].seen[0]):
        assert seen.headers["authorization"] == "Bearer key"
        assert seen.headers["traceparent"] == "00-1-2-01"
        assert seen.headers["x-custom"] == "yes"
        assert seen.headers["x-name"].encode("latin-1") == "Zoë".encode()
        assert seen.headers["x-request-id"] == "mine-1"
        assert "x-hop" not in seen.headers
        assert seen.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("bad", ["a b", "x" * 200, 'quote"', "é"])
def test_a_strange_request_id_is_replaced(pair, bad):
    answer = pair.client.chat(headers={"X-Request-Id": bad.encode("latin-1")})
    assert answer.headers["x-request-id"] not in ("", bad)
    assert len(answer.headers["x-request-id"]) == 32


def test_the_other_endpoints(pair):
    models = pair.client.ask("GET", "/v1/models")
    assert (models.status, models.json["data"][0]["id"]) == (200, "D0")
    for path in ("/tokenize", "/detokenize"):
        answer = pair.client.ask("POST", path, {"prompt": "é"})
        assert answer.json == {"engine": "P0", "path": path, "echo": {"prompt": "é"}}
    count = pair.client.ask("POST", "/v1/messages/count_tokens", {"messages": [{"content": "hello"}]})
    assert (count.status, count.json["input_tokens"] > 30) == (200, True)
    assert pair.client.ask("GET", "/version").json == {"version": "0.29.0"}
    page = pair.client.ask("GET", "/")
    assert (page.status, page.headers["content-type"].partition(";")[0]) == (200, "text/html")
    assert pair.client.ask("GET", "/openapi.json").json["paths"].keys() >= {"/v1/responses", "/v1/messages"}
    assert {row["role"] for row in pair.client.ask("GET", "/router/state").json["legs"]} == {
        "prefill",
        "decode",
    }
    health = pair.client.ask("GET", "/health")
    assert (health.status, health.json["status"]) == (200, "ok")
    assert [leg["healthy"] for leg in health.json["decode"]] == [True]


def test_metrics_count_paths_and_handles(engine, router, conversation):
    (_, prefill_url), (_, decode_url) = engine("prefill"), engine("decode")
    client = router([prefill_url], [decode_url])
    client.chat(conversation, stream=True)
    client.chat(conversation, stream=True)
    client.complete()
    wait_until(lambda: client.metric("pd_router_in_flight") == 0)
    for expected, name, labels in (
        (1, "requests_total", {"outcome": "ok", "path": "readback", "status": "200", "stream": "true"}),
        (2, "path_total", {"path": "prefill", "reason": "forced-unavailable"}),
        (1, "path_total", {"path": "readback", "reason": "forced"}),
        (1, "readback_total", {"outcome": "hit"}),
        (2, "readback_total", {"outcome": "none"}),
        (32, "kv_read_tokens_total", {}),
        (2, "handles_total", {"event": "saved"}),
        (1, "handles_total", {"event": "hit"}),
        (1, "anonymous_requests_total", {}),
        (1, "conversations", {}),
        (1, "prefill_seconds_count", {"path": "readback"}),
        (2, "ttft_seconds_count", {}),
        (1, "leg_healthy", {"role": "decode", "url": decode_url}),
    ):
        assert client.metric(f"pd_router_{name}", **labels) == expected, (name, labels)


def test_one_log_line_per_request_without_anything_private(pair, conversation):
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {
        "Authorization": "Bearer topsecret",
        "X-Request-Id": "log-1",
        "traceparent": f"00-{trace}-00f067aa0ba902b7-01",
    }
    pair.client.chat(conversation, stream=True, headers=headers)
    line = pair.client.logged("log-1")
    expected = {
        "path": "prefill",
        "reason": "forced-unavailable",
        "identity": "explicit",
        "endpoint": "/v1/chat/completions",
        "status": "200",
        "stream": "true",
        "prompt_tokens": "37",
        "saved": "true",
        "outcome": "ok",
        "readback": "none",
        "attempts": "2",
        "trace": trace,
        "key": "-",
        "retries": "0",
        "prefill": pair.urls[0],
        "decode": pair.urls[1],
        "msg": f'"Prefill done in {line["prefill_ms"]}ms"',
    }
    assert expected.items() <= line.items()
    assert float(line["ttft_ms"]) >= float(line["prefill_ms"])
    for secret in ("topsecret", conversation, "remote_", "hello"):
        assert secret not in " ".join(line.values())


def test_a_large_body_and_a_small_limit(engine, router):
    (prefill, prefill_url), (_, decode_url) = engine("prefill"), engine("decode")
    client = router([prefill_url], [decode_url], max_body_bytes=3_000_000)
    long = [{"role": "user", "content": "x" * 2_000_000}]
    assert client.chat(messages=long).status == 200
    assert prefill.seen[0].body["messages"] == long
    refused = client.chat(messages=long * 2)
    assert (refused.status, refused.json["error"]["code"]) == (413, 413)
