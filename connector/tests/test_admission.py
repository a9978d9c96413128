"""What a request may take from another engine, decided on handles of every kind."""

import dataclasses
from typing import Any

import pytest

from pd_connector.admission import Admitted, Engine, admit
from pd_connector.blockids import pack
from pd_connector.handle import SIGNATURE, HandleError, Proof, seal, sign
from pd_connector.proof import Context, block_digests, prompt_digest

CONTEXT = Context("model", 4)
ENGINE = Engine(bidirectional=True)
HISTORY = list(range(100, 122))
"""22 tokens: five whole blocks of four."""


def from_decode(**change: Any) -> dict[str, Any]:
    proof = Proof(4, 20, block_digests(HISTORY[:20], CONTEXT)).to_wire()
    return {
        "do_remote_decode": True,
        "remote_block_ids": [[5, 6, 7, 8, 9]],
        "remote_engine_id": "d",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 1,
        "remote_num_tokens": 20,
        "pd_lease": "lease",
        "pd_proof": proof,
        **change,
    }


def from_prefill(prompt: list[int], **change: Any) -> dict[str, Any]:
    return from_decode(
        do_remote_decode=False,
        do_remote_prefill=True,
        remote_block_ids=[list(range(-(-len(prompt) // 4)))],
        remote_num_tokens=len(prompt),
        pd_proof=Proof(4, len(prompt), prompt_digest(prompt, CONTEXT)).to_wire(),
        **change,
    )


def reason(params: Admitted) -> str:
    assert params.decision is not None
    return params.decision.reason


@pytest.mark.parametrize(
    ("prompt", "blocks"),
    [
        ([*HISTORY, 1, 2, 3], 5),
        (HISTORY[:20], 5),
        (HISTORY[:19], 4),
        (HISTORY[:3], 0),
        ([*HISTORY[:9], 1, *HISTORY[10:]], 2),
        ([1, *HISTORY[1:]], 0),
        (HISTORY[4:], 0),
    ],
)
def test_readback_is_cut_to_the_common_blocks(prompt: list[int], blocks: int) -> None:
    params = admit(from_decode(), prompt, CONTEXT, ENGINE)
    assert params["remote_num_tokens"] == blocks * 4
    # Without a common block the ids stay, so that decode is told to release them.
    assert params["remote_block_ids"] == [[5, 6, 7, 8, 9][: blocks or 5]]
    assert reason(params) == ("ok" if blocks else "other-tokens")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cache_salt": "s"}, "other-tokens"),
        ({"lora": "l"}, "other-tokens"),
        ({"media": ("m",)}, "other-tokens"),
        ({"model": "o"}, "other-tokens"),
        ({"block_size": 2}, "other-block-size"),
    ],
    ids=str,
)
def test_readback_of_another_context_reads_nothing(change: dict[str, Any], expected: str) -> None:
    params = admit(from_decode(), HISTORY, dataclasses.replace(CONTEXT, **change), ENGINE)
    assert (params["remote_num_tokens"], reason(params)) == (0, expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"pd_proof": None}, "no-proof"),
        ({"pd_proof": []}, "malformed-proof"),
        ({"pd_lease": ""}, "no-lease"),
        ({"pd_proof": {"format": 1}}, "other-format"),
        ({"pd_proof": {"format": True}}, "other-format"),
        ({"pd_proof": {"format": 2}}, "malformed-proof"),
        ({"pd_proof": {"format": 2, "block_size": 4, "tokens": 20, "digests": "AAAA"}}, "malformed-proof"),
        ({"remote_block_ids": [[1, 2]]}, "malformed-proof"),
    ],
    ids=str,
)
def test_readback_without_a_valid_proof_reads_nothing(change: dict[str, Any], expected: str) -> None:
    params = admit(from_decode(**change), HISTORY, CONTEXT, ENGINE)
    assert (params["remote_num_tokens"], reason(params)) == (0, expected)
    assert params["remote_block_ids"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("remote_engine_id", [None, 1, ""]),
        ("remote_request_id", [None, 1]),
        ("remote_host", [None, 1]),
        ("remote_port", [None, "1", 0, 65536, True]),
        ("remote_num_tokens", [None, "1", -1, 1.5, 1 << 40]),
        ("remote_block_ids", ["ab", {"a": 1}, [1], [["1"]], [[-1]], [[True]], [[1 << 31]], [[1], [2]]]),
        ("pd_blocks", ["ab", [], {"a": 1}, [1], ["*"], ["AAAA"], [pack([1]), pack([2])], [pack([1])[:-4]]]),
        ("remote_blocks_expiry_time", ["1", True]),
        ("pd_lease", [1, None, "l" * 65]),
        ("tp_size", [0, "1", None, 1 << 20]),
    ],
)
def test_a_malformed_handle_is_forgotten(name: str, values: list[Any]) -> None:
    for value in values:
        readback = admit(from_decode(**{name: value}), HISTORY, CONTEXT, ENGINE)
        pull = admit({**from_prefill(HISTORY), name: value}, HISTORY, CONTEXT, ENGINE)
        for params in (readback, pull):
            assert not any(member.startswith("remote_") for member in params), (name, value)
            assert not params["do_remote_prefill"]
            assert reason(params) not in ("ok", "")


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (Engine(bidirectional=False), "bidirectional-off"),
        (Engine(bidirectional=True, plain_attention=False), "hybrid-model"),
        (Engine(bidirectional=True, groups=2), "other-groups"),
        (Engine(bidirectional=True, host_buffer=True), "host-buffer"),
        (Engine(bidirectional=True, context_parallel=True), "context-parallel"),
        (Engine(bidirectional=True, barred="prompt-logprobs"), "prompt-logprobs"),
    ],
    ids=str,
)
def test_an_engine_that_cannot_read_back_does_not(engine: Engine, expected: str) -> None:
    params = admit(from_decode(), HISTORY, CONTEXT, engine)
    assert not params.get("remote_num_tokens")
    assert reason(params) == expected


def test_pull_of_the_same_prompt() -> None:
    params = admit(from_prefill(HISTORY), HISTORY, CONTEXT, ENGINE)
    assert params["do_remote_prefill"]
    assert params.may_pull
    assert params.retain


def test_a_barred_request_pulls_nothing_but_tells_prefill() -> None:
    params = admit(from_prefill(HISTORY), HISTORY, CONTEXT, dataclasses.replace(ENGINE, barred="why"))
    assert params["do_remote_prefill"]
    assert not params.may_pull
    assert reason(params) == "why"


def test_pull_from_blocks_of_another_size() -> None:
    wide = dataclasses.replace(CONTEXT, block_size=8)
    handle = from_prefill(HISTORY, remote_engine_id="p")
    handle["pd_proof"] = Proof(8, 22, prompt_digest(HISTORY, wide)).to_wire()
    handle["remote_block_ids"] = [[1, 2, 3]]
    assert admit(handle, HISTORY, CONTEXT, ENGINE).may_pull


@pytest.mark.parametrize("prompt", [HISTORY[:-1], [*HISTORY, 1], [1, *HISTORY[1:]], None], ids=str)
def test_pull_of_another_prompt_reads_nothing_but_tells_prefill(prompt: list[int] | None) -> None:
    params = admit(from_prefill(HISTORY), prompt, CONTEXT, ENGINE)
    assert params["do_remote_prefill"]
    assert not params.may_pull
    assert params["remote_block_ids"]


def test_pull_with_a_block_missing_reads_nothing() -> None:
    handle = from_prefill(HISTORY)
    handle["remote_block_ids"][0].pop()
    assert not admit(handle, HISTORY, CONTEXT, ENGINE).may_pull


def test_a_model_that_does_not_keep_all_blocks_may_pull_fewer() -> None:
    handle = from_prefill(HISTORY)
    handle["remote_block_ids"][0].pop()
    assert admit(handle, HISTORY, CONTEXT, Engine(True, plain_attention=False)).may_pull


def test_only_who_asks_retains() -> None:
    assert not admit({"foo": 1}, HISTORY, CONTEXT, ENGINE).retain
    assert not admit({"pd_retain": "yes"}, HISTORY, CONTEXT, ENGINE).retain
    assert admit({"pd_retain": True}, HISTORY, CONTEXT, ENGINE).retain
    assert not admit({"pd_retain": True}, HISTORY, CONTEXT, Engine(bidirectional=False)).retain
    assert not admit({"pd_retain": True}, HISTORY, CONTEXT, Engine(True, decodes=False)).retain
    assert not admit({"do_remote_prefill": True}, HISTORY, CONTEXT, Engine(True, decodes=False)).retain
    assert admit({"do_remote_prefill": True}, HISTORY, CONTEXT, ENGINE).retain
    assert not admit({"do_remote_prefill": True, "pd_retain": False}, HISTORY, CONTEXT, ENGINE).retain


def test_the_engines_own_notes_cannot_be_sent_in() -> None:
    sent = from_decode(_remote_blocks_processed=True, _p_side_truncated=True)
    assert not any(name.startswith("_") for name in admit(sent, HISTORY, CONTEXT, ENGINE))
    assert sent["_remote_blocks_processed"]


def test_both_directions_at_once_is_a_prefill() -> None:
    params = admit({**from_prefill(HISTORY), "do_remote_decode": True}, HISTORY, CONTEXT, ENGINE)
    assert not params["do_remote_prefill"]
    assert not params["remote_num_tokens"]


def test_packed_blocks_are_what_vllm_gets_to_see() -> None:
    sent = from_decode(remote_block_ids=[[]], remote_num_tokens=0, pd_blocks=[pack([9, 8, 7, 6, 5])])
    params = admit(sent, HISTORY[:13], CONTEXT, ENGINE)
    assert params["remote_block_ids"] == [[9, 8, 7]]
    assert params["remote_num_tokens"] == 12
    assert "pd_blocks" not in params
    pulled = admit(
        {**from_prefill(HISTORY), "remote_block_ids": [[]], "pd_blocks": [pack(range(6))]},
        HISTORY,
        CONTEXT,
        ENGINE,
    )
    assert pulled.may_pull
    assert pulled["remote_block_ids"] == [[0, 1, 2, 3, 4, 5]]


def test_packed_blocks_alone_are_a_readback() -> None:
    sent = from_decode(pd_blocks=[pack([5, 6, 7, 8, 9])])
    del sent["remote_block_ids"]
    assert reason(admit(sent, HISTORY, CONTEXT, ENGINE)) == "ok"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pd_blocks", [pack([5, 6, 7, 8, 10])]),
        ("tp_size", 2),
        ("remote_engine_id", "e"),
        ("remote_request_id", "s"),
    ],
)
def test_an_edited_handle_has_another_seal(name: str, value: Any) -> None:
    whole = from_decode(remote_block_ids=[[]], pd_blocks=[pack([5, 6, 7, 8, 9])], tp_size=1)
    seals = []
    for handle in (whole, {**whole, name: value}):
        source = admit(handle, HISTORY, CONTEXT, ENGINE).source
        assert source is not None
        seals.append(source.seal)
    assert seals[0] != seals[1]
    assert seals[0] == seal(whole)


def from_prefill_of_history(**change: Any) -> dict[str, Any]:
    return {**from_prefill(HISTORY), **change}


BOTH = pytest.mark.parametrize("make", [from_decode, from_prefill_of_history])


@BOTH
def test_a_proof_that_nests_deeply_proves_nothing(make: Any) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    handle = make(pd_proof=deep)
    params = admit(handle, HISTORY, CONTEXT, ENGINE)
    assert reason(params) == "malformed-proof"
    assert params.source is None
    with pytest.raises(HandleError, match="malformed-proof"):
        seal(handle)


SECRET = b"what the engines share"
GUARDED = dataclasses.replace(ENGINE, secret=SECRET)


def signed(handle: dict[str, Any]) -> dict[str, Any]:
    return {**handle, SIGNATURE: sign(handle, SECRET)}


@BOTH
def test_a_signed_handle_is_used_as_any_other(make: Any) -> None:
    handle = make()
    plain = admit(handle, HISTORY, CONTEXT, ENGINE)
    guarded = admit(signed(handle), HISTORY, CONTEXT, GUARDED)
    assert reason(guarded) == reason(plain) == "ok"
    assert guarded.source == plain.source
    assert (guarded.may_pull, guarded["remote_num_tokens"]) == (plain.may_pull, plain["remote_num_tokens"])
    # An engine without the secret takes signed handles too.
    assert reason(admit(signed(handle), HISTORY, CONTEXT, ENGINE)) == "ok"


EDITS: dict[str, Any] = {
    "pd_blocks": [pack([5, 6, 7, 8, 10])],
    "pd_lease": "other",
    "pd_proof": Proof(4, 20, b"12345678" * 5).to_wire(),
    "remote_engine_id": "e",
    "remote_host": "i",
    "remote_port": 2,
    "remote_request_id": "s",
    "tp_size": 2,
    "dcp_size": 2,
    "pp_size": 2,
    SIGNATURE: "0" * 32,
}


@BOTH
@pytest.mark.parametrize("name", EDITS)
def test_an_edited_handle_is_not_used_and_nobody_is_asked(make: Any, name: str) -> None:
    handle = {**signed(make(remote_block_ids=[[]], pd_blocks=[pack([5, 6, 7, 8, 9])])), name: EDITS[name]}
    params = admit(handle, HISTORY, CONTEXT, GUARDED)
    assert reason(params) == "unsigned"
    assert params.source is None
    assert not params["do_remote_prefill"]
    assert not any(member.startswith("remote_") or member == SIGNATURE for member in params)


@pytest.mark.parametrize("found", [None, 5, "", "\ud800", "é", ["x"], {}], ids=ascii)
def test_a_signature_of_any_other_kind_is_none(found: Any) -> None:
    params = admit({**from_decode(), SIGNATURE: found}, HISTORY, CONTEXT, GUARDED)
    assert reason(params) == "unsigned"


def test_a_signature_is_worth_nothing_under_another_secret() -> None:
    handle = from_decode()
    forged = {**handle, SIGNATURE: sign(handle, b"another secret")}
    assert reason(admit(forged, HISTORY, CONTEXT, GUARDED)) == "unsigned"


def test_an_engine_does_not_show_its_secret() -> None:
    assert "engines share" not in repr(GUARDED)


@BOTH
def test_nothing_is_unpacked_for_nothing(make: Any) -> None:
    """A text of 87 kB may hold four million ids: that would hold up every other request."""
    giant = "AABAAA" + "A" * 87_378
    unsigned = make(remote_block_ids=[[]], pd_blocks=[giant])
    assert reason(admit(unsigned, HISTORY, CONTEXT, GUARDED)) == "unsigned"
    assert reason(admit(make(pd_blocks=[giant] * 2), HISTORY, CONTEXT, ENGINE)) == "other-groups"
    small = dataclasses.replace(ENGINE, most_tokens=4)
    assert reason(admit(make(pd_blocks=[giant]), HISTORY, CONTEXT, small)) == "pd_blocks"
    assert reason(admit(make(pd_blocks=[pack(range(5))]), HISTORY, CONTEXT, small)) == "pd_blocks"
    assert reason(admit(make(remote_block_ids=[[1] * 5]), HISTORY, CONTEXT, small)) == "remote_block_ids"
