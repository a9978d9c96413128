"""Whatever a client makes of its history, the tokens are those of an engine that reuses nothing."""

from typing import Any

import engines
import pytest
from conftest import Pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pd_connector.admission import Engine, admit
from pd_connector.blockids import pack
from pd_connector.handle import BLOCKS, LEASE, PROOF, Proof, seal
from pd_connector.proof import Context, block_digests

SIZE = 4
CONTEXT = Context("model", SIZE)
tokens = st.integers(300, 999)


@st.composite
def edits(draw: st.DrawFn, history: list[int]) -> list[int]:
    """One to three of: append, replace, insert, delete, cut off, keep a tail only, repeat."""
    edited = list(history)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(edited) - 1)))
        some = draw(st.lists(tokens, min_size=1, max_size=12))
        kind = draw(st.sampled_from(["append", "replace", "insert", "delete", "cut", "tail", "repeat"]))
        edited = {
            "append": edited + some,
            "replace": [*edited[:place], *some, *edited[place + len(some) :]],
            "insert": [*edited[:place], *some, *edited[place:]],
            "delete": [*edited[:place], *edited[place + len(some) :]],
            "cut": edited[:place],
            "tail": edited[place:],
            "repeat": edited + edited[place:],
        }[kind]
    return edited


def from_decode(history: list[int], ids: list[int]) -> dict[str, Any]:
    """The handle that decode gives for this history."""
    blocks = len(history) // SIZE
    proof = Proof(SIZE, blocks * SIZE, block_digests(history[: blocks * SIZE], CONTEXT))
    return {
        "do_remote_decode": True,
        "remote_block_ids": [[]],
        BLOCKS: [pack(ids[:blocks])],
        "remote_engine_id": "d",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 1,
        "remote_num_tokens": 0,
        LEASE: "lease",
        PROOF: proof.to_wire(),
    }


@given(st.lists(tokens, max_size=80), st.data())
def test_exactly_the_common_whole_blocks_are_read(history: list[int], data: st.DataObject) -> None:
    prompt = data.draw(edits(history))
    ids = data.draw(st.permutations(range(20)))
    same = next((i for i, (a, b) in enumerate(zip(history, prompt, strict=False)) if a != b), None)
    if same is None:
        same = min(len(history), len(prompt))
    params = admit(from_decode(history, ids), prompt, CONTEXT, Engine(bidirectional=True))
    whole = same // SIZE
    assert params["remote_num_tokens"] == whole * SIZE
    if whole:
        assert params["remote_block_ids"] == [ids[:whole]]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = [
    *from_decode([], []),
    "do_remote_prefill",
    "tp_size",
    "remote_blocks_expiry_time",
    "pd_release",
    "pd_retain",
]


@given(
    st.dictionaries(st.sampled_from(MEMBERS), anything, max_size=4),
    st.sets(st.sampled_from(MEMBERS), max_size=2),
    st.booleans(),
)
@settings(max_examples=300)
def test_a_hostile_handle_leaves_only_what_vllm_can_take(
    change: dict[str, Any], gone: set[str], pull: bool
) -> None:
    history = list(range(300, 340))
    handle = from_decode(history, list(range(10)))
    if pull:
        handle |= {"do_remote_decode": False, "do_remote_prefill": True}
    handle = {name: value for name, value in {**handle, **change}.items() if name not in gone}
    seal(handle)
    params = admit(handle, history, CONTEXT, Engine(bidirectional=True))
    assert isinstance(params["do_remote_decode"], bool)
    assert isinstance(params["do_remote_prefill"], bool)
    groups, count = params.get("remote_block_ids"), params.get("remote_num_tokens")
    if not groups:
        assert not params["do_remote_prefill"]
        return
    assert all(isinstance(block, int) and 0 <= block < 1 << 31 for group in groups for block in group)
    assert params["remote_engine_id"]
    assert 0 < params["remote_port"] < 65536
    if params["do_remote_decode"]:
        assert count % SIZE == 0
        assert count <= min(len(history), len(groups[0]) * SIZE)


@pytest.mark.engine
@given(st.integers(0, 1 << 30), st.integers(33, 260), st.data())
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
def test_on_real_engines(pair: Pair, seed: int, length: int, data: st.DataObject) -> None:
    prompt = engines.words(length, seed)
    _, answer = pair.turn(prompt, 36)
    history = prompt + answer["choices"][0]["token_ids"]
    edited = data.draw(edits(history)) or [300]
    pair.forget_prefix()
    expected = pair.recompute(edited, 6)
    first, reply = pair.turn(edited, 6, answer["kv_transfer_params"])
    assert engines.produced(reply) == expected
    assert engines.produced(first)[0] == expected[0][:1]
    # What was read has entered prefill's own cache; it must be right for others too.
    assert engines.produced(pair.prefill.complete(edited, 6)) == expected
    for kept in (answer, reply):
        if kept["kv_transfer_params"]:
            pair.decode.leases("release", kept["kv_transfer_params"]["pd_lease"])


CHAT = "/v1/chat/completions"
HISTORY_CHANGES = {
    "append": lambda talk: talk,
    "whitespace": lambda talk: [{**talk[0], "content": talk[0]["content"] + " "}, *talk[1:]],
    "another system prompt": lambda talk: [{"role": "system", "content": "Be brief."}, *talk],
    "stripped reply": lambda talk: [talk[0], {**talk[1], "content": talk[1]["content"][20:]}, *talk[2:]],
    "dropped turn": lambda talk: talk[2:],
    "edited question": lambda talk: [{**talk[0], "content": "Say " + talk[0]["content"]}, *talk[1:]],
}


@pytest.mark.engine
@pytest.mark.parametrize("change", HISTORY_CHANGES)
@pytest.mark.parametrize("template", [None, "other"])
def test_a_chat_whose_history_or_template_changed(pair: Pair, change: str, template: str | None) -> None:
    body: dict[str, Any] = {"model": "tiny", "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    question = {"role": "user", "content": f"{change} {template}: write a class that parses arguments. " * 6}
    first = pair.prefill.ask(
        CHAT, {**body, "messages": [question], "max_tokens": 1, "kv_transfer_params": engines.FIRST_TURN}
    )
    told = pair.decode.ask(
        CHAT,
        {**body, "messages": [question], "max_tokens": 50, "kv_transfer_params": first["kv_transfer_params"]},
    )
    reply = {"role": "assistant", "content": told["choices"][0]["message"]["content"]}
    talk = HISTORY_CHANGES[change]([question, reply, {"role": "user", "content": "And now with tests."}])
    asked: dict[str, Any] = {"messages": talk}
    if template:
        asked = {"prompt": "".join(f"[{message['role']}] {message['content']}\n" for message in talk)}
    prompt = pair.prefill.ask("/tokenize", {"model": "tiny", **asked})["tokens"]
    pair.forget_prefix()
    expected = pair.recompute(prompt, 6)
    answers = pair.turn(prompt, 6, told["kv_transfer_params"])
    assert engines.produced(answers[1]) == expected
    assert engines.produced(pair.prefill.complete(prompt, 6)) == expected
