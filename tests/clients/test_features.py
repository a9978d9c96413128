"""What the SDKs can ask for beside text: tools, several choices, stored responses, helpers, counting."""

from __future__ import annotations

from typing import Any

import pytest
from openai import NotFoundError

from tests.clients.conftest import Pair, Serve

LONG = "Tell me a long story, please. " * 30
ANSWER = "Once upon a time"
TOOL: dict[str, Any] = {
    "name": "f",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {}},
}
CHAT_TOOL: dict[str, Any] = {"type": "function", "function": TOOL}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_tools_round_trip_in_chat(serve: Serve, pair: Pair) -> None:
    router = serve(path="readback")
    client = router.openai()
    messages: list[Any] = [user(LONG)]
    first = client.chat.completions.create(model="tiny", messages=messages, tools=[CHAT_TOOL])
    (call,) = first.choices[0].message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("f", "{}")
    # As programs do it: the SDK's own message goes back.
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "42"}]
    second = client.chat.completions.create(model="tiny", messages=messages, tools=[CHAT_TOOL])
    assert second.choices[0].message.content == ANSWER
    assert router.ways.paths == ["prefill", "readback"]
    assert pair.decode.seen[1].body["messages"][2]["tool_call_id"] == call.id
    # Other tools are another prompt from its beginning on.
    client.chat.completions.create(model="tiny", messages=messages)
    assert router.ways.paths[2] == "prefill"


def test_a_tools_round_trip_in_responses(serve: Serve, pair: Pair) -> None:
    router = serve(path="readback")
    client = router.openai()
    tools: list[Any] = [{"type": "function", **TOOL}]
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
    items: list[Any] = [user(LONG)]
    client.responses.create(model="tiny", input=items, tools=tools, store=False)
    items += [call, result]
    client.responses.create(model="tiny", input=items, tools=tools, store=False)
    assert router.ways.paths == ["prefill", "readback"]
    assert pair.decode.seen[1].body["input"][1:] == [call, result]


def test_a_tools_round_trip_in_messages_with_a_moving_cache_mark(serve: Serve, pair: Pair) -> None:
    """Agents mark the newest message for caching, and unmark it in the next turn."""
    router = serve(path="readback")
    client = router.anthropic()
    tools: list[Any] = [{"name": "f", "description": "Looks.", "input_schema": {"type": "object"}}]
    system: list[Any] = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    asked = {"type": "text", "text": LONG}
    used = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"}
    mark = {"cache_control": {"type": "ephemeral"}}
    turns: list[list[Any]] = [
        [{"role": "user", "content": [asked | mark]}],
        [
            {"role": "user", "content": [asked]},
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": [found | mark]},
        ],
    ]
    for messages in turns:
        message = client.messages.create(
            model="tiny", max_tokens=9, system=system, tools=tools, messages=messages
        )
        assert (message.content[0].text, message.stop_reason) == (ANSWER, "end_turn")
    assert router.ways.paths == ["prefill", "readback"]
    assert pair.decode.seen[1].body["messages"] == turns[1]


def test_several_choices(serve: Serve) -> None:
    router = serve()
    client = router.openai()
    chat = client.chat.completions.create(model="tiny", messages=[user(LONG)], n=3)
    assert [choice.message.content for choice in chat.choices] == [ANSWER] * 3
    completion = client.completions.create(model="tiny", prompt=LONG, n=2)
    assert [choice.text for choice in completion.choices] == [ANSWER] * 2
    # One handle cannot tell of several sequences.
    assert router.ways.paths == ["decode-local", "decode-local"]


def test_log_probabilities_are_asked_of_decode_alone(serve: Serve, pair: Pair) -> None:
    client = serve().openai()
    client.chat.completions.create(model="tiny", messages=[user(LONG)], logprobs=True, top_logprobs=2)
    client.completions.create(model="tiny", prompt=LONG, logprobs=2)
    assert [seen.body.get("logprobs") for seen in pair.decode.seen] == [True, 2]
    assert [seen.body.get("logprobs") for seen in pair.prefill.seen] == [None, None]


def test_usage_at_the_end_of_a_stream(serve: Serve) -> None:
    *_, last = (
        serve()
        .openai()
        .chat.completions.create(
            model="tiny", messages=[user(LONG)], stream=True, stream_options={"include_usage": True}
        )
    )
    assert last.usage is not None
    assert last.usage.completion_tokens == 4
    assert last.choices == []


def test_a_stored_response_is_continued_and_read_again(serve: Serve, pair: Pair) -> None:
    router = serve()
    client = router.openai()
    first = client.responses.create(model="tiny", input=LONG)
    second = client.responses.create(model="tiny", input="And then?", previous_response_id=first.id)
    assert second.output_text == ANSWER
    # Only the engine that stored the first knows what was said.
    assert router.ways.paths == ["prefill", "decode-local"]
    stored = client.responses.retrieve(first.id)
    assert (stored.id, stored.output_text) == (first.id, ANSWER)
    assert "kv_transfer_params" not in stored.to_dict()
    with router.openai(api_key="another") as stranger, pytest.raises(NotFoundError):
        stranger.responses.retrieve(first.id)
    assert [seen.body.get("previous_response_id") for seen in pair.decode.seen] == [None, first.id]


def test_a_streamed_response_is_continued(serve: Serve) -> None:
    client = serve().openai()
    *_, last = client.responses.create(model="tiny", input=LONG, stream=True)
    second = client.responses.create(
        model="tiny", input="And then?", previous_response_id=last.response.id, stream=True
    )
    assert [event.type for event in second][-1] == "response.completed"


def test_the_sdks_stream_helpers(serve: Serve) -> None:
    """They check the order of events, and put the answer together themselves."""
    router = serve()
    client = router.openai()
    with client.chat.completions.stream(model="tiny", messages=[user(LONG)]) as chat:
        text = "".join(event.delta for event in chat if event.type == "content.delta")
        snapshot = chat.current_completion_snapshot
        assert (text, snapshot.choices[0].message.content) == (ANSWER, ANSWER)
    with client.responses.stream(model="tiny", input=LONG) as response:
        text = "".join(event.delta for event in response if event.type == "response.output_text.delta")
        assert (text, response.get_final_response().output_text) == (ANSWER, ANSWER)
    with router.anthropic().messages.stream(model="tiny", max_tokens=9, messages=[user(LONG)]) as message:
        text = "".join(event.text for event in message if event.type == "text")
        final = message.get_final_message()
        assert (text, final.content[0].text, final.stop_reason) == (ANSWER, ANSWER, "max_tokens")


def test_no_answer_shows_kv_metadata(serve: Serve) -> None:
    router = serve(path="readback")
    client = router.openai()
    chat = client.chat.completions.create(model="tiny", messages=[user(LONG)])
    completion = client.completions.create(model="tiny", prompt=LONG)
    response = client.responses.create(model="tiny", input=LONG)
    message = router.anthropic().messages.create(model="tiny", max_tokens=9, messages=[user(LONG)])
    for answer in (chat, completion, response, message):
        assert "kv_transfer_params" not in answer.to_dict()
        assert "pd_lease" not in answer.to_json()
    chunks = list(client.chat.completions.create(model="tiny", messages=[user(LONG), user("x")], stream=True))
    assert router.ways.paths[-1] == "readback"
    assert ["kv_transfer_params" in chunk.to_dict() for chunk in chunks] == [False] * 4


def test_models_counts_and_request_ids(serve: Serve) -> None:
    router = serve()
    client = router.openai()
    assert [model.id for model in client.models.list()] == ["D"]
    counted = router.anthropic().messages.count_tokens(model="tiny", messages=[user(LONG)])
    assert counted.input_tokens > len(LONG) // 4
    # Which is how the SDKs name a request to whoever looks for it in the log.
    answer = client.chat.completions.create(
        model="tiny", messages=[user(LONG)], extra_headers={"X-Request-Id": "mine-1"}
    )
    assert answer._request_id == "mine-1"
    assert "request_id=mine-1 " in router.logged(3)[2]
