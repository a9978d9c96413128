"""Real prefill and decode engines: a readback gives the tokens of a recompute, whatever the prompt."""

import re
from typing import Any

import engines
import pytest
from conftest import Pair

pytestmark = pytest.mark.engine
REPLY = 40
AFTER = 12


class FirstTurn:
    """A prompt of 200 tokens, decode's reply, and the handle decode gave."""

    def __init__(self, pair: Pair, seed: int, **more: Any) -> None:
        self.prompt = engines.words(200, seed)
        _, answer = pair.turn(self.prompt, REPLY, **more)
        self.reply: list[int] = answer["choices"][0]["token_ids"]
        self.handle: dict[str, Any] = answer["kv_transfer_params"]
        self.all = self.prompt + self.reply


def read_tokens(pair: Pair, handle: dict[str, Any]) -> dict[str, str]:
    """The fields of prefill's log line about this handle."""
    remote = handle["remote_request_id"]
    lines = [
        line for line in pair.prefill.text().splitlines() if "readback request=" in line and remote in line
    ]
    assert lines, f"prefill logged no readback of {remote}"
    return dict(re.findall(r"(\w+)=(\S+)", lines[-1]))


def second_turn(pair: Pair, prompt: list[int], handle: dict[str, Any], **more: Any) -> dict[str, str]:
    """Run it with the handle on an empty prefill cache, compare with a recompute, return the log's fields."""
    pair.forget_prefix()
    expected = pair.recompute(prompt, AFTER)
    first, answer = pair.turn(prompt, AFTER, handle, **more)
    assert engines.produced(answer) == expected
    assert engines.produced(first)[0] == expected[0][:1]
    fields = read_tokens(pair, handle)
    assert first["kv_transfer_params"]["pd_read"] == int(fields["read"])
    return fields


def test_exact_continuation_reads_all_whole_blocks(pair: Pair) -> None:
    turn = FirstTurn(pair, 1)
    assert turn.handle["pd_proof"]["tokens"] == 224
    fields = second_turn(pair, turn.all + engines.words(30, 2), turn.handle)
    assert (fields["held"], fields["common"], fields["read"], fields["reason"]) == ("224", "224", "224", "ok")


def test_part_of_the_prefix_in_prefills_own_cache(pair: Pair) -> None:
    turn = FirstTurn(pair, 3)
    prompt = turn.all + engines.words(30, 4)
    expected = pair.recompute(prompt, AFTER)
    _, answer = pair.turn(prompt, AFTER, turn.handle)
    assert engines.produced(answer) == expected
    fields = read_tokens(pair, turn.handle)
    assert int(fields["local"]) + int(fields["read"]) == 224
    assert int(fields["local"]) > 0
    assert int(fields["read"]) > 0


def test_edited_middle_reads_only_the_blocks_before_the_edit(pair: Pair) -> None:
    turn = FirstTurn(pair, 5)
    edited = [*turn.all[:100], turn.all[100] ^ 1, *turn.all[101:], *engines.words(30, 6)]
    fields = second_turn(pair, edited, turn.handle)
    assert (fields["common"], fields["read"]) == ("96", "96")


def test_dropped_reasoning_reads_only_the_blocks_before_it(pair: Pair) -> None:
    turn = FirstTurn(pair, 7)
    fields = second_turn(pair, turn.prompt + turn.reply[20:] + engines.words(30, 8), turn.handle)
    assert (fields["common"], fields["read"]) == ("192", "192")


def test_other_history_reads_nothing(pair: Pair) -> None:
    turn = FirstTurn(pair, 9)
    fields = second_turn(pair, engines.words(240, 10), turn.handle)
    assert (fields["common"], fields["read"], fields["reason"]) == ("0", "0", "other-tokens")


@pytest.mark.parametrize("length", [128, 150, 224])
def test_shorter_prompt_pairs_the_right_blocks(pair: Pair, length: int) -> None:
    turn = FirstTurn(pair, 11 + length)
    fields = second_turn(pair, turn.all[:length], turn.handle)
    assert fields["read"] == str(length // 32 * 32)


def test_other_cache_salt_reads_nothing(pair: Pair) -> None:
    turn = FirstTurn(pair, 12, cache_salt="one")
    fields = second_turn(pair, turn.all + engines.words(30, 13), turn.handle, cache_salt="two")
    assert (fields["common"], fields["read"]) == ("0", "0")


def test_same_cache_salt_reads(pair: Pair) -> None:
    turn = FirstTurn(pair, 14, cache_salt="one")
    fields = second_turn(pair, turn.all + engines.words(30, 15), turn.handle, cache_salt="one")
    assert fields["read"] == "224"


def test_prefills_prefix_cache_is_not_poisoned(pair: Pair) -> None:
    turn = FirstTurn(pair, 16)
    edited = [*turn.all[:70], turn.all[70] ^ 1, *turn.all[71:], *engines.words(30, 17)]
    second_turn(pair, edited, turn.handle)
    plain = pair.prefill.complete(edited, AFTER)
    assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert engines.produced(plain) == pair.recompute(edited, AFTER)


def test_proof_taken_away_reads_nothing(pair: Pair) -> None:
    turn = FirstTurn(pair, 18)
    del turn.handle["pd_proof"]
    fields = second_turn(pair, turn.all + engines.words(30, 19), turn.handle)
    assert (fields["read"], fields["reason"]) == ("0", "no-proof")


def test_handle_of_another_format_reads_nothing(pair: Pair) -> None:
    turn = FirstTurn(pair, 20)
    turn.handle["pd_proof"]["format"] = 1
    fields = second_turn(pair, turn.all + engines.words(30, 21), turn.handle)
    assert (fields["read"], fields["reason"]) == ("0", "other-format")


def test_nothing_stays_behind_on_decode_after_a_refused_readback(pair: Pair) -> None:
    engines.eventually(lambda: pair.prefill.kv_used() == 0, "prefill's blocks are released")
    turn = FirstTurn(pair, 22)
    held = pair.decode.kv_used()
    assert held > 0
    pair.turn(engines.words(64, 23), 1, turn.handle)
    engines.eventually(lambda: pair.decode.kv_used() < held, "decode released the refused blocks")


def test_retokenised_chat_reply(pair: Pair) -> None:
    """The client sends text back; where its tokens are others than decode's, reuse ends, tokens do not."""
    ask = [{"role": "user", "content": "Write a class that parses arguments. " * 8}]
    body = {"model": "tiny", "temperature": 0, "max_tokens": 60, "ignore_eos": True, "return_token_ids": True}
    first = pair.prefill.ask(
        "/v1/chat/completions",
        {**body, "messages": ask, "max_tokens": 1, "kv_transfer_params": engines.FIRST_TURN},
    )
    reply = pair.decode.ask(
        "/v1/chat/completions", {**body, "messages": ask, "kv_transfer_params": first["kv_transfer_params"]}
    )
    handle = reply["kv_transfer_params"]
    talk = [*ask, reply["choices"][0]["message"], {"role": "user", "content": "And now with tests."}]
    talk[1] = {"role": "assistant", "content": talk[1]["content"]}
    prompt = pair.prefill.ask("/tokenize", {"model": "tiny", "messages": talk})["tokens"]
    fields = second_turn(pair, prompt, handle)
    own = first["prompt_token_ids"] + reply["choices"][0]["token_ids"]
    same = next((i for i, (a, b) in enumerate(zip(own, prompt, strict=False)) if a != b), len(own))
    assert int(fields["common"]) == min(same // 32 * 32, handle["pd_proof"]["tokens"])
    assert int(fields["read"]) > 0
