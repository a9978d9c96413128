"""What the client gets is what decode sent, byte for byte, without the KV metadata; and decode gets what the
client sent."""

import anthropic
import openai
import pytest

from toolkit.router.request.bodies import MISS_PARAMS
from toolkit.router.request.dialects import Endpoint
from toolkit.testing.fake_engine import Fault

every_endpoint = pytest.mark.parametrize("endpoint", list(Endpoint))
both_modes = pytest.mark.parametrize("stream", [True, False])
OPENAI = [Endpoint.CHAT, Endpoint.COMPLETIONS]
HANDLE = (
    b'{"remote_block_ids":[[1,2]],"remote_engine_id":"d","remote_request_id":"r","remote_host":"h",'
    b'"remote_port":1}'
)
STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"),)
# Everything in them would look different if it were parsed and written again.
ODD = [
    b'{"id":"x", "big":123456789012345678901234567890, "small":1E-7,"zero":-0.0,"dup":1,"dup":2}',
    b'{"id" : "\\u00e9\\ud83d\\ude00 \xc3\xa9", "empty":{} ,"null":null, "tab":"\\t\\/" }',
    b'{"choices":[{"message":{"content":"\\"kv_transfer_params\\":{\\"a\\":1}"}}]}',
    b'{"choices":[{"logprobs":{"content":[{"token":"kv_transfer_params","logprob":-1.10}]}}]}',
]


def placed(text, value, where):
    """An object's text with the KV member at one of its ends."""
    member = b'"kv_transfer_params":' + value
    inside = text[1:-1]
    return b"{" + (member + b"," + inside if where == "first" else inside + b"," + member) + b"}"


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("value", [HANDLE, b"null"])
@pytest.mark.parametrize("text", ODD)
def test_of_a_whole_answer_nothing_else_changes(pair, conversation, text, value, where):
    pair.decodes[0].fault = Fault(status=200, body=placed(text, value, where))
    answer = pair.client.chat(conversation)
    assert (answer.status, answer.body) == (200, text)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("text", ODD)
def test_of_a_stream_nothing_else_changes(pair, conversation, text, line_end):
    clean = [b": ping", b"data: " + text, b"data:" + text, b"id: 1\nevent: odd\nretry: 5\ndata: " + text]
    given = [*clean, b"data: " + placed(text, HANDLE, "last")]
    clean.append(b"data: " + text)

    def stream(events):
        return b"".join(event + b"\n\n" for event in [*events, b"data: [DONE]"]).replace(b"\n", line_end)

    pair.decodes[0].fault = Fault(status=200, headers=STREAM, body=stream(given), only=1)
    answer = pair.client.chat(conversation, stream=True)
    assert (answer.status, answer.body) == (200, stream(clean))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


@both_modes
@every_endpoint
def test_every_answer_is_the_engines_without_its_metadata(pair, conversation, endpoint, stream):
    members = {} if endpoint not in OPENAI else {"stream_options": {"include_usage": True}} if stream else {}
    answer = pair.client.turn(endpoint, ["hi"], stream=stream, conversation_id=conversation, **members)
    decode = pair.decodes[0].seen[0]
    assert (answer.status, answer.body) == (200, decode.clean)
    for leak in (b"kv_transfer_params", b"remote_", b"pd_"):
        assert leak not in answer.body
    # The stream of /v1/messages has no place for a handle.
    assert (decode.params is None) == (stream and endpoint == Endpoint.MESSAGES)
    assert b'"usage"' in answer.body
    assert answer.headers["x-request-id"]
    if stream:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["transfer-encoding"] == "chunked"
    else:
        assert int(answer.headers["content-length"]) == len(answer.body)


@both_modes
@pytest.mark.parametrize("endpoint", OPENAI)
def test_several_choices_are_the_engines_answer(pair, endpoint, stream):
    answer = pair.client.turn(endpoint, ["hi"], stream=stream, n=3)
    assert (answer.path, answer.body) == ("decode-local", pair.decodes[0].seen[0].clean)
    assert pair.prefills[0].seen == []
    if not stream:
        assert len(answer.json["choices"]) == 3


MEMBERS = {
    Endpoint.CHAT: {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 10**30}}}],
        "tool_choice": "auto",
        "logprobs": True,
        "top_logprobs": 3,
        "stop": ["END"],
        "temperature": 0.25,
        "seed": 7,
        "response_format": {"type": "json_object"},
        "max_completion_tokens": 50,
        "metadata": {"é": "😀"},
    },
    Endpoint.COMPLETIONS: {"logprobs": 2, "stop": "END", "suffix": "x", "echo": False, "max_tokens": 50},
    Endpoint.RESPONSES: {
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "max_output_tokens": 50,
        "store": False,
        "reasoning": {"effort": "low"},
    },
    Endpoint.MESSAGES: {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "stop_sequences": ["END"],
        "max_tokens": 50,
    },
}


@both_modes
@every_endpoint
def test_decode_is_sent_the_clients_request_and_prefills_metadata(
    pair, make_body, conversation, endpoint, stream
):
    body = make_body(endpoint, ["hi"], stream=stream, **MEMBERS[endpoint])
    answer = pair.client.ask("POST", endpoint, {**body, "conversation_id": conversation})
    assert answer.status == 200
    prefill, decode = pair.prefills[0].seen[0], pair.decodes[0].seen[0]
    given = decode.body.pop("kv_transfer_params")
    assert given == {
        **prefill.params,
        **({"pd_retain": False} if stream and endpoint == Endpoint.MESSAGES else {}),
    }
    assert decode.body == body
    # To prefill the prompt is the same, and only one token is asked for.
    assert prefill.body["kv_transfer_params"] == MISS_PARAMS
    limits = {
        name: value for name, value in prefill.body.items() if name.startswith("max_") or name == "stream"
    }
    assert limits == {
        ("max_output_tokens" if endpoint == Endpoint.RESPONSES else "max_tokens"): 1,
        "stream": False,
    }
    for name in ("messages", "prompt", "input", "tools", "system", "instructions"):
        assert prefill.body.get(name) == body.get(name)


def test_the_engines_headers_reach_the_client_and_hop_by_hop_ones_do_not(pair):
    headers = (
        (b"content-type", b"application/json"),
        (b"x-engine-note", b"kept"),
        (b"set-cookie", b"a=1"),
        (b"x-hop", b"no"),
        (b"connection", b"x-hop"),
        (b"server", b"uvicorn"),
        (b"x-request-id", b"the-engines"),
    )
    pair.decodes[0].fault = Fault(status=200, body=b"{}", headers=headers)
    answer = pair.client.chat(headers={"X-Request-Id": "mine"})
    kept = {name: answer.headers.get(name) for name in ("x-engine-note", "set-cookie", "x-request-id")}
    assert kept == {"x-engine-note": "kept", "set-cookie": "a=1", "x-request-id": "mine"}
    assert not {"x-hop", "server"} & answer.headers.keys()
    assert answer.headers["date"].count(":") == 2


@every_endpoint
def test_each_event_arrives_while_the_engine_still_generates(pair, make_body, endpoint):
    pair.decodes[0].token_s = 0.05
    connection = pair.client.send("POST", endpoint, make_body(endpoint, ["hi"], stream=True))
    answer = connection.getresponse()
    got = 0
    while (line := answer.readline()) and pair.decodes[0].seen[0].ended == "running":
        got += line.startswith(b"data: ")
    answer.read()
    connection.close()
    # All but the last few, however slow this machine is.
    assert got >= 3


# Unmodified clients read it.


def test_the_openai_library_reads_chat_completions_and_responses(pair):
    with openai.OpenAI(base_url=pair.client.url + "/v1", api_key="k", max_retries=0) as client:
        messages = [{"role": "user", "content": "hello"}]
        chat = client.chat.completions.create(model="m", messages=messages)
        assert chat.choices[0].message.content == "Once upon a time"
        assert chat.choices[0].message.tool_calls[0].function.name == "f"
        with client.chat.completions.create(
            model="m", messages=messages, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        said = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        assert "".join(said) == "Once upon a time"
        assert chunks[-1].usage.prompt_tokens == 37
        text = client.completions.create(model="m", prompt="hello", n=2)
        assert [choice.text for choice in text.choices] == ["Once upon a time"] * 2
        response = client.responses.create(model="m", input="hello")
        assert response.output_text == "Once upon a time"
        with client.responses.create(model="m", input=messages, stream=True) as stream:
            events = list(stream)
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == "Once upon a time"
        kept = client.responses.retrieve(events[-1].response.id)
        assert kept.output_text == "Once upon a time"
        pair.decodes[0].fault = Fault(reset="stream")
        with pytest.raises(openai.APIError, match="closed the connection"):
            list(client.chat.completions.create(model="m", messages=messages, stream=True))
        with pytest.raises(openai.APIError, match="closed the connection"):
            list(client.responses.create(model="m", input="hello", stream=True))
        with pytest.raises(openai.BadRequestError, match="must be true or false"):
            client.chat.completions.create(model="m", messages=messages, extra_body={"stream": 5})


def test_the_anthropic_library_reads_messages(pair):
    with anthropic.Anthropic(base_url=pair.client.url, api_key="k", max_retries=0) as client:
        messages = [{"role": "user", "content": "hello"}]
        answer = client.messages.create(model="m", max_tokens=5, messages=messages)
        assert (answer.content[0].text, answer.stop_reason) == ("Once upon a time", "end_turn")
        with client.messages.stream(model="m", max_tokens=5, messages=messages) as stream:
            assert stream.get_final_text() == "Once upon a time"
        assert client.messages.count_tokens(model="m", messages=messages).input_tokens == 37
        pair.decodes[0].fault = Fault(reset="stream")
        with (
            pytest.raises(anthropic.APIError, match="closed the connection"),
            client.messages.stream(model="m", max_tokens=5, messages=messages) as stream,
        ):
            stream.get_final_text()
