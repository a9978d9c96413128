"""The fake engine does what a router relies on: forms of answers, what handles prove, leases, stock."""

import http.client
import json
from urllib.parse import urlsplit

import pytest

from toolkit.router.memory.handle import Handle
from toolkit.router.request.bodies import MISS_PARAMS, prompt_tokens, transfer_params
from toolkit.router.request.dialects import DIALECTS, Endpoint
from toolkit.router.request.kvmember import cut_member
from toolkit.router.request.sse import EventRelay, response_id
from toolkit.testing.fake_engine import FakeEngine, Fault, serve_engine

CHAT, COMPLETIONS, RESPONSES, MESSAGES = Endpoint
HELLO = [{"role": "user", "content": "hello"}]
PULL = {"do_remote_prefill": True, "remote_block_ids": [[]]}
RETAIN = {"pd_retain": True}
BODIES = {
    CHAT: {"messages": HELLO},
    COMPLETIONS: {"prompt": "hello"},
    RESPONSES: {"input": HELLO},
    MESSAGES: {"messages": HELLO, "max_tokens": 4},
}
every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))


class Asked:
    """An engine and its URL."""

    def __init__(self, engine, url):
        self.engine = engine
        self.netloc = urlsplit(url).netloc

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection(self.netloc, timeout=5)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def generate(self, endpoint, params=None, **members):
        """The parameters that the engine answered."""
        body = {**BODIES[endpoint], **members, "kv_transfer_params": params}
        status, raw = self.ask("POST", endpoint, body)
        assert status == 200
        return json.loads(raw).get("kv_transfer_params")

    def leases(self, operation, *names, **headers):
        return self.ask("POST", f"/pd/leases/{operation}", {"leases": names}, **headers)


@pytest.fixture(scope="module")
def engines():
    prefill, decode = FakeEngine("prefill", "P"), FakeEngine("decode", "D")
    with serve_engine(prefill) as first, serve_engine(decode) as second:
        yield Asked(prefill, first), Asked(decode, second)


@pytest.fixture
def prefill(engines):
    engines[0].engine.reset()
    return engines[0]


@pytest.fixture
def decode(engines):
    engines[1].engine.reset()
    return engines[1]


def handle_from(params):
    """What the router would send to prefill in the next turn."""
    packed = Handle.pack(params)
    return packed and packed.unpack()


@every_endpoint
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("params", [PULL, RETAIN, {**PULL, "pd_retain": False}, None])
def test_the_handle_is_where_vllm_writes_it_and_can_be_cut(decode, endpoint, stream, native, params):
    decode.engine.native = native
    body = {**BODIES[endpoint], "stream": stream, "kv_transfer_params": params}
    status, raw = decode.ask("POST", endpoint, body)
    assert status == 200
    seen = decode.engine.seen[-1]
    if stream:
        relay = EventRelay(endpoint)
        assert relay.feed(raw) + relay.finish() == seen.clean
        assert relay.done
        captured = relay.captured
    else:
        cut = cut_member(raw, DIALECTS[endpoint].nests)
        assert cut.text == seen.clean
        captured = cut.value
    assert b"kv_transfer_params" not in seen.clean
    kept = params in (PULL, RETAIN)
    assert (seen.params is not None) == kept
    assert len(decode.engine.leases.held) == kept
    assert captured == (seen.params if DIALECTS[endpoint].stream_handle or not stream else None)
    assert (handle_from(captured) is not None) == (captured is not None)


@every_endpoint
def test_the_prompt_grows_with_its_text(decode, endpoint):
    counts = []
    for words in (100, 200, 300):
        text = "four" * words
        content = {"prompt": text} if endpoint is COMPLETIONS else {}
        items = [{"role": "user", "content": text}]
        content |= {name: items for name in ("messages", "input") if name in BODIES[endpoint]}
        counts.append(
            prompt_tokens(json.loads(decode.ask("POST", endpoint, {**BODIES[endpoint], **content})[1]))
        )
    assert [counts[1] - counts[0], counts[2] - counts[1]] == [100, 100]


@every_endpoint
def test_a_turn_reads_what_the_one_before_left_as_far_as_it_is_equal(prefill, decode, endpoint):
    if endpoint is COMPLETIONS:
        turns = ({"prompt": "hello" * 40}, {"prompt": "hello" * 40 + "Once upon a time, and on"})
    else:
        name = "input" if endpoint is RESPONSES else "messages"
        first = [{"role": "user", "content": "hello" * 40}]
        reply = {"role": "assistant", "content": "Once upon a time"}
        turns = ({name: first}, {name: [*first, reply, {"role": "user", "content": "more"}]})

    handed = prefill.generate(endpoint, dict(MISS_PARAMS), **turns[0])
    assert (handed["pd_read"], transfer_params({"kv_transfer_params": handed})) == (0, handed)
    handle = handle_from(decode.generate(endpoint, handed, **turns[0]))
    held = handle["pd_proof"]["tokens"]
    assert held > 64
    again = prefill.generate(endpoint, handle, **turns[1])
    assert again["pd_read"] == held
    assert again["pd_proof"]["tokens"] >= held
    # A block is read once.
    assert decode.engine.leases.states == {handle["pd_lease"]: "read"}
    assert prefill.generate(endpoint, handle, **turns[1])["pd_read"] == 0

    edited = handle_from(decode.generate(endpoint, PULL, **turns[1]))
    turned = json.loads(json.dumps(turns[1]).replace("hellohello", "hellohallo", 1))
    assert prefill.generate(endpoint, edited, **turned)["pd_read"] == 32


def test_a_long_history_has_few_digests(decode, prefill):
    body = {"prompt": "x" * 400_000}
    handle = handle_from(decode.generate(COMPLETIONS, RETAIN, **body))
    assert len(json.dumps(handle)) < 16_000
    assert prefill.generate(COMPLETIONS, handle, **body)["pd_read"] > 99_000


@pytest.mark.parametrize("end", ["release", "restart", "given-up", "pd_release"])
def test_what_is_no_longer_held_is_not_read(prefill, decode, end):
    handle = handle_from(decode.generate(CHAT, PULL))
    lease = handle["pd_lease"]
    if end == "release":
        assert json.loads(decode.leases("release", lease)[1])["leases"][lease] == {
            "ok": True,
            "state": "released",
        }
    elif end == "restart":
        decode.engine.restart("2")
        assert decode.generate(CHAT, PULL)["remote_engine_id"] == "D+2"
    elif end == "given-up":
        decode.engine.leases.states[lease] = "given-up"
    else:
        assert decode.generate(CHAT, {"pd_release": [lease]}) is None
    assert prefill.generate(CHAT, handle)["pd_read"] == 0


def test_leases_are_renewed_claimed_once_and_counted(decode):
    lease = decode.generate(CHAT, RETAIN)["pd_lease"]
    for operation, state in (("renew", "held"), ("claim", "claimed"), ("renew", "claimed")):
        status, raw = decode.leases(operation, lease)
        answer = json.loads(raw)["leases"][lease]
        assert (status, answer["ok"], answer["state"], answer["seconds"]) == (200, True, state, 480.0)
    refused = json.loads(decode.leases("claim", lease, "nobody")[1])["leases"]
    assert refused == {lease: {"ok": False, "state": "claimed"}, "nobody": {"ok": False, "state": "unknown"}}
    decode.leases("release", lease)
    counts = json.loads(decode.ask("GET", "/pd/leases")[1])
    assert {name: count for name, count in counts.items() if count} == {
        "granted": 1,
        "renewed": 2,
        "claimed": 1,
        "refused": 2,
        "released": 1,
    }
    calls = [(call.operation, call.names) for call in decode.engine.leases.calls]
    assert calls[3] == ("claim", (lease, "nobody"))
    assert calls[-1] == ("counts", ())


def test_lease_routes_refuse_as_the_connector_does(decode):
    assert decode.ask("POST", "/pd/leases/renew", ["x"])[0] == 400
    assert decode.leases("renew", *["x"] * 1025)[0] == 400
    assert decode.leases("steal", "x")[0] == 404
    decode.engine.leases.secret = "s"
    assert decode.leases("renew", "x")[0] == 401
    assert decode.leases("renew", "x", Authorization="Bearer t")[0] == 401
    assert decode.leases("renew", "x", Authorization="Bearer s")[0] == 200
    decode.engine.leases.status = 503
    assert decode.leases("renew", "x", Authorization="Bearer s")[0] == 503
    decode.engine.stock = True
    assert decode.leases("renew", "x", Authorization="Bearer s")[0] == 404


def test_a_stock_engine_proves_nothing_and_strands_what_it_does_not_understand(prefill, decode):
    decode.engine.stock = True
    handle = handle_from(decode.generate(CHAT, {**PULL, "pd_retain": False}))
    assert not [name for name in handle if name.startswith("pd_")]
    assert handle["remote_block_ids"][0]
    assert handle["remote_num_tokens"] > 0
    assert decode.engine.stranded == 0
    assert decode.generate(CHAT) is None
    for count, params in enumerate((RETAIN, {"pd_release": ["x"]}), start=1):
        decode.generate(CHAT, params)
        assert decode.engine.stranded == count
    assert prefill.generate(CHAT, handle)["pd_read"] == 0
    prefill.engine.stock = True
    assert "pd_read" not in prefill.generate(CHAT, dict(MISS_PARAMS))


@pytest.mark.parametrize("stream", [True, False])
def test_responses_are_stored_unless_the_client_says_no(decode, stream):
    status, raw = decode.ask(
        "POST", RESPONSES, {"input": "hello", "stream": stream, "kv_transfer_params": PULL}
    )
    relay = EventRelay(RESPONSES, wants_id=True)
    named = response_id(raw) if not stream else (relay.feed(raw), relay.response_id)[1]
    status, kept = decode.ask("GET", f"/v1/responses/{named}")
    assert (status, response_id(kept)) == (200, named)
    # As vLLM does: the metadata is in what it stores.
    assert json.loads(kept)["kv_transfer_params"] == decode.engine.seen[0].params
    assert decode.ask("POST", f"/v1/responses/{named}/cancel")[0] == 400
    assert decode.ask("POST", RESPONSES, {"input": "x", "previous_response_id": named})[0] == 200
    decode.ask("POST", RESPONSES, {"input": "hello", "store": False})
    assert len(decode.engine.responses) == 2
    decode.engine.restart("2")
    for method, path in (("GET", f"/v1/responses/{named}"), ("POST", f"/v1/responses/{named}/cancel")):
        assert decode.ask(method, path)[0] == 404
    assert decode.ask("POST", RESPONSES, {"input": "x", "previous_response_id": named})[0] == 404


@every_endpoint
def test_a_stream_can_break_before_its_last_event(decode, endpoint):
    body = {**BODIES[endpoint], "stream": True}
    _, whole = decode.ask("POST", endpoint, body)
    events = whole.count(b"\n\n")
    decode.engine.fault = Fault(reset="stream", after_events=events - 1)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        decode.ask("POST", endpoint, body)
    sent = decode.engine.seen[1].clean
    assert (sent.count(b"\n\n"), DIALECTS[endpoint].ends[0] in sent) == (events - 1, False)


def test_tokens_are_counted_for_messages(decode):
    status, raw = decode.ask("POST", "/v1/messages/count_tokens", {"messages": HELLO})
    assert (status, json.loads(raw)) == (200, {"input_tokens": 37})


@pytest.mark.parametrize("messages", [None, "x", 5, [], [None], [[]], [{}], [{"content": None}], {"a": 1}])
def test_prompts_of_any_shape_are_answered(decode, messages):
    assert decode.ask("POST", CHAT, {"messages": messages})[0] == 200
