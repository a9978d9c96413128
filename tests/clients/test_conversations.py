"""Later turns of programs that use the SDKs are found, and the programs send nothing extra for it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.clients.conftest import Pair, Serve
from tests.clients.talks import ENDPOINTS, ChatTalk, begin
from toolkit.testing.fake_engine import Fault

TURNS = [f"{word} " * 100 for word in ("Begin", "Go on", "And then")]
ANSWER = "Once upon a time"

every_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS)
both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@every_endpoint
@both_modes
def test_later_turns_are_read_back(serve: Serve, pair: Pair, endpoint: str, stream: bool) -> None:
    router = serve(path="readback")
    talk = begin(router, endpoint, stream)
    assert [talk.say(text) for text in TURNS] == [ANSWER] * 3
    if endpoint == "messages" and stream:
        # Its stream has no place for a handle.
        assert router.ways.paths == ["prefill"] * 3
        return
    assert router.ways.paths == ["prefill", "readback", "readback"]
    # All but the last, begun block of what decode held: a prompt of bytes, four a token, and its answer.
    said = [seen.params["pd_proof"]["tokens"] for seen in pair.decode.seen if seen.params is not None]
    assert router.ways.read == [0, *said[:2]]


@every_endpoint
@both_modes
def test_later_turns_stay_on_the_decode_engine(serve: Serve, pair: Pair, endpoint: str, stream: bool) -> None:
    """With the router's own choice of the path: few new tokens are computed where the history is."""
    router = serve()
    talk = begin(router, endpoint, stream)
    assert [talk.say(text) for text in TURNS] == [ANSWER] * 3
    assert router.ways.paths == ["prefill", "decode-local", "decode-local"]
    lines = router.logged(3)
    assert ["identity=automatic" in line for line in lines] == [True] * 3
    assert ["reason=short-suffix" in line for line in lines] == [False, True, True]
    assert len(pair.prefill.seen) == 1


def test_a_long_new_message_is_read_back_by_the_routers_own_choice(serve: Serve) -> None:
    router = serve()
    talk = begin(router, "chat", True)
    for text in TURNS:
        talk.say(text * 10)
    assert router.ways.paths == ["prefill", "readback", "readback"]
    assert router.ways.read[2] > router.ways.read[1] > 0


@every_endpoint
def test_conversations_with_one_system_prompt_keep_apart(serve: Serve, endpoint: str) -> None:
    router = serve(path="readback")
    first = begin(router, endpoint, False)
    first.say(TURNS[0])
    other = begin(router, endpoint, False)
    other.say(TURNS[1])
    other.say(TURNS[2])
    first.say(TURNS[2])
    assert router.ways.paths == ["prefill", "prefill", "readback", "readback"]


def test_two_branches_of_one_history(serve: Serve) -> None:
    router = serve()
    talk = begin(router, "chat", False)
    assert isinstance(talk, ChatTalk)
    talk.say(TURNS[0])
    history = list(talk.messages)
    talk.say(TURNS[1])
    talk.messages = history
    talk.say(TURNS[2])
    assert router.ways.paths == ["prefill", "decode-local", "decode-local"]


def test_another_credential_finds_nothing(serve: Serve) -> None:
    router = serve(path="readback")
    mine, theirs = (ChatTalk(router.openai(api_key=key), False) for key in ("mine", "theirs"))
    mine.say(TURNS[0])
    theirs.say(TURNS[0])
    mine.say(TURNS[1])
    assert router.ways.paths == ["prefill", "prefill", "readback"]


def test_many_conversations_at_once_keep_apart(serve: Serve) -> None:
    router = serve(path="readback")

    async def converse(client, number: int) -> None:
        messages = []
        for text in TURNS:
            messages.append({"role": "user", "content": f"{number}: {text}"})
            whole = await client.chat.completions.create(model="tiny", messages=messages)
            messages.append({"role": "assistant", "content": whole.choices[0].message.content})

    async def run() -> None:
        async with router.openai_async() as client:
            await asyncio.gather(*(converse(client, number) for number in range(12)))

    asyncio.run(run())
    assert Counter(router.ways.paths) == {"prefill": 12, "readback": 24}


def test_a_restart_of_decode_is_noticed(serve: Serve, pair: Pair) -> None:
    router = serve(path="readback", health_interval_s=0.05)
    talk = begin(router, "chat", False)
    talk.say(TURNS[0])
    pair.decode.restart("again")
    assert talk.say(TURNS[1]) == ANSWER
    assert talk.say(TURNS[2]) == ANSWER
    assert router.ways.paths[2] == "readback"
    # What the earlier engine held was not there to be read.
    assert router.ways.read[1] == 0
    assert router.ways.read[2] > 0


@every_endpoint
def test_leaving_a_stream_ends_the_work(serve: Serve, pair: Pair, endpoint: str) -> None:
    """The SDKs close the connection of a stream that is given up."""
    router = serve()
    pair.decode.fault = Fault(hang="stream", after_events=3, only=1)
    start = {
        "chat": lambda: router.openai().chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], stream=True
        ),
        "completions": lambda: router.openai().completions.create(model="tiny", prompt="x", stream=True),
        "responses": lambda: router.openai().responses.create(model="tiny", input="x", stream=True),
        "messages": lambda: router.anthropic().messages.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], max_tokens=9, stream=True
        ),
    }[endpoint]
    with start() as stream:
        next(iter(stream))
    (line,) = router.logged(1)
    assert "outcome=client-gone" in line
    assert [seen.ended for seen in pair.decode.seen] == ["aborted"]
