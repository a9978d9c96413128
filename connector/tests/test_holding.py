"""Real engines: decode's blocks under leases, asked for over HTTP, in band and by the reader itself."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engines
import pytest
from conftest import Pair, start_pair, transfer

pytestmark = pytest.mark.engine
BLOCKS = 66
"""Of 32 tokens: decode holds ten conversations of six blocks."""
SECRET = "open sesame"


@pytest.fixture(scope="module")
def small(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair whose decode engine has a small cache; both engines know one secret."""
    options = {"decode": ("--num-gpu-blocks-override", str(BLOCKS))}
    folder = tmp_path_factory.mktemp("small")
    (folder / "secret").write_text(SECRET)
    extra = {"decoder_kv_blocks_ttl": 60, "pd_lease_secret_file": str(folder / "secret")}
    with start_pair(model, folder, options, **extra) as started:
        started.decode.lease_secret = SECRET
        yield started
        for one in (started.prefill, started.decode):
            assert SECRET not in one.text()


def keep(pair: Pair, seed: int, length: int = 150) -> tuple[list[int], dict[str, Any]]:
    """A conversation on decode: its tokens, and the handle."""
    prompt = engines.words(length, seed)
    answer = pair.decode.complete(prompt, 30, {"pd_retain": True})
    return prompt + answer["choices"][0]["token_ids"], answer["kv_transfer_params"]


def added_up(counts: dict[str, int]) -> bool:
    ended = sum(counts[name] for name in ("read", "released", "given_up", "expired"))
    return counts["granted"] == ended + counts["held"]


def assert_read_while_held(pair: Pair) -> None:
    """Both engines say so when somebody reports a read of what they no longer hold."""
    time.sleep(1.5)
    for one in (pair.prefill, pair.decode):
        assert "Potentially invalid KV blocks" not in one.text()


def release_all(pair: Pair, *handles: dict[str, Any]) -> None:
    pair.decode.leases("release", *(handle["pd_lease"] for handle in handles))


def test_renew_claim_and_release(small: Pair) -> None:
    _, handle = keep(small, 1)
    name = handle["pd_lease"]
    renewed = small.decode.leases("renew", name, "other")
    assert renewed["other"] == {"ok": False, "state": "unknown"}
    assert renewed[name]["ok"]
    assert renewed[name]["state"] == "held"
    assert renewed[name]["remote_blocks_expiry_time"] > handle["remote_blocks_expiry_time"]
    assert small.decode.leases("claim", name)[name]["state"] == "claimed"
    assert small.decode.leases("claim", name)[name] == {"ok": False, "state": "claimed"}
    used = small.decode.kv_used()
    assert small.decode.leases("release", name)[name]["ok"]
    engines.eventually(lambda: small.decode.kv_used() < used, "its blocks are free", 3)
    assert small.decode.leases("claim", name)[name] == {"ok": False, "state": "released"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"leases":5}', '{"leases":[5]}', '{"leases":[""]}'])
def test_a_malformed_question_is_a_400(small: Pair, text: str) -> None:
    assert small.decode.post_text("/pd/leases/claim", text)[0] == 400


def test_the_next_turn_releases_in_band(small: Pair) -> None:
    _, handle = keep(small, 2)
    held = small.decode.lease_counts()["held"]
    small.decode.complete([300] * 10, 1, {"pd_release": [handle["pd_lease"], "other", 5]})
    assert small.decode.lease_counts()["held"] == held - 1


def test_prefills_read_ends_the_lease(small: Pair) -> None:
    tokens, handle = keep(small, 3)
    before = small.decode.lease_counts()
    prompt = [*tokens, *engines.words(20, 4)]
    expected = small.recompute(prompt, 8)
    first, answer = small.turn(prompt, 8, handle)
    assert engines.produced(answer) == expected
    assert first["kv_transfer_params"]["pd_read"] > 0
    engines.eventually(lambda: small.decode.lease_counts()["read"] == before["read"] + 1, "it was read", 5)
    release_all(small, answer["kv_transfer_params"])


def test_a_handle_used_twice_is_read_once(small: Pair) -> None:
    tokens, handle = keep(small, 5)
    for seed, reads in ((6, True), (7, False)):
        small.forget_prefix()
        prompt = [*tokens, *engines.words(20, seed)]
        expected = small.recompute(prompt, 8)
        first, answer = small.turn(prompt, 8, handle)
        assert engines.produced(answer) == expected
        assert bool(first["kv_transfer_params"]["pd_read"]) == reads
        release_all(small, answer["kv_transfer_params"])


def test_a_lease_that_was_given_up_is_computed(small: Pair) -> None:
    tokens, handle = keep(small, 8)
    release_all(small, handle)
    prompt = [*tokens, *engines.words(20, 9)]
    expected = small.recompute(prompt, 8)
    first, answer = small.turn(prompt, 8, handle)
    assert first["kv_transfer_params"]["pd_read"] == 0
    assert engines.produced(answer) == expected
    release_all(small, answer["kv_transfer_params"])


def test_prefills_blocks_are_pulled_once(small: Pair) -> None:
    prompt = engines.words(150, 10)
    handle = small.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
    expected = small.recompute(prompt, 8)
    answer = small.decode.complete(prompt, 8, {**handle, "pd_retain": False})
    assert engines.produced(answer) == expected
    engines.eventually(lambda: small.prefill.kv_used() == 0, "prefill was told", 5)
    status, _ = small.decode.post("/reset_prefix_cache", {})
    assert status == 200
    status, text = small.decode.post(
        "/v1/completions", engines.completion(prompt, 8, {**handle, "pd_retain": False})
    )
    assert status == 500, text
    assert small.decode.healthy()
    assert_read_while_held(small)


def test_of_several_choices_only_the_one_in_the_answer_is_held(small: Pair) -> None:
    before = small.decode.lease_counts()["held"]
    body = engines.completion(engines.words(100, 11), 20, {"pd_retain": True}, n=3, temperature=0.8)
    answer = small.decode.ask("/v1/completions", body)
    assert small.decode.lease_counts()["held"] == before + 1
    name = answer["kv_transfer_params"]["pd_lease"]
    assert small.decode.leases("release", name)[name]["ok"]


def test_several_choices_of_a_pulled_prompt(small: Pair) -> None:
    prompt = engines.words(150, 12)
    handle = small.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
    sampling = {"n": 3, "temperature": 0.5, "top_k": 1}
    body = engines.completion(prompt, 8, {**handle, "pd_retain": False}, **sampling)
    answer = small.decode.ask("/v1/completions", body)
    expected = small.recompute(prompt, 8)[0]
    assert [choice["token_ids"] for choice in answer["choices"]] == [expected] * 3
    assert_read_while_held(small)


def test_leases_that_fill_the_cache_make_way_for_a_plain_request(small: Pair) -> None:
    handles = [keep(small, 100 + seed)[1] for seed in range(12)]
    counts = small.decode.lease_counts()
    assert counts["given_up"] > 0, "twelve do not fit"
    assert counts["held"] >= 6
    prompt = engines.words(1200, 13)
    answer = small.decode.complete(prompt, 8, cache_salt="plain")
    assert engines.produced(answer) == small.recompute(prompt, 8)
    after = small.decode.lease_counts()
    assert after["given_up"] > counts["given_up"]
    assert added_up(after)
    release_all(small, *handles)


def test_a_renewed_and_a_claimed_lease_outlive_younger_ones(small: Pair) -> None:
    renewed, claimed, *others = [keep(small, 200 + seed)[1] for seed in range(6)]
    small.decode.leases("claim", claimed["pd_lease"])
    small.decode.leases("renew", renewed["pd_lease"])
    small.decode.complete(engines.words(1200, 14), 4, cache_salt="plain-2")
    state = small.decode.leases("renew", *(h["pd_lease"] for h in (renewed, claimed, *others)))
    assert state[claimed["pd_lease"]]["state"] == "claimed"
    assert state[renewed["pd_lease"]]["ok"]
    assert state[others[0]["pd_lease"]] == {"ok": False, "state": "given-up"}
    release_all(small, renewed, claimed, *others)


def test_a_turn_that_is_aborted_releases_decodes_blocks(small: Pair) -> None:
    tokens, handle = keep(small, 16)
    before = small.decode.lease_counts()["read"]
    long = [engines.words(1900, 300 + number) for number in range(3)]
    busy = [threading.Thread(target=small.prefill.complete, args=(prompt, 1)) for prompt in long]
    for thread in busy:
        thread.start()
    asked = engines.completion([*tokens, *engines.words(20, 17)], 1, {**handle, **engines.FIRST_TURN})
    body = json.dumps(asked).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", small.prefill.port)) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.05)
    for thread in busy:
        thread.join()
    engines.eventually(lambda: small.decode.lease_counts()["read"] == before + 1, "decode was told", 10)


def test_the_metrics_are_those_of_the_route(small: Pair) -> None:
    def same() -> bool:
        counts = small.decode.lease_counts()
        gauges = {name: counts[name] for name in ("held", "held_tokens")}
        exported = {name: small.decode.metric(f"pd_connector:leases_{name}{{") for name in gauges}
        totals = {n: small.decode.metric(f"pd_connector:leases_{n}_total") for n in counts if n not in gauges}
        return exported | totals == counts

    small.decode.complete([300] * 8, 1)
    engines.eventually(same, "the metrics have caught up", 5)


def test_a_lease_ends_in_time_while_the_engine_sleeps(model: Path, tmp_path: Path) -> None:
    """And this engine's routes want the secret, also from loopback."""
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    settings = transfer("decode", decoder_kv_blocks_ttl=6, pd_lease_secret_file=str(tmp_path / "secret"))
    with engines.engine("short", model, 1, tmp_path, settings) as decode:
        decode.complete(engines.words(100, 15), 8, {"pd_retain": True})
        start = time.monotonic()
        for secret in (None, "wrong"):
            decode.lease_secret = secret
            assert decode.post("/pd/leases/release", {"leases": []})[0] == 401
        decode.lease_secret = SECRET
        assert decode.lease_counts()["held"] == 1
        engines.eventually(lambda: decode.lease_counts()["expired"] == 1, "it expired", 10)
        assert time.monotonic() - start > 3, "it was held for its time"
        engines.eventually(lambda: decode.kv_used() == 0, "its blocks are free", 3)
        assert SECRET not in decode.text()


@pytest.mark.parametrize("engine", ["prefill", "decode"])
def test_nobody_is_asked_about_a_handle_that_no_engine_signed(small: Pair, engine: str) -> None:
    """Whatever place it names: no engine connects to a place that a client invents."""
    prompt = engines.words(150, 16 + len(engine))
    if engine == "prefill":
        handle = {**small.decode.complete(prompt, 8, {"pd_retain": True})["kv_transfer_params"]}
        asked = engines.FIRST_TURN
    else:
        handle = small.prefill.complete(prompt, 1, engines.FIRST_TURN)["kv_transfer_params"]
        asked = {}
    assert len(handle["pd_signature"]) == 32
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(3)
        for change in ({"pd_signature": None}, {"pd_signature": "0" * 32}, {}):
            lie = {**handle, **change, **asked, "remote_port": listener.getsockname()[1]}
            answer = getattr(small, engine).complete(prompt, 2, lie)
            assert engines.produced(answer) == small.recompute(prompt, 2)
        with pytest.raises(TimeoutError):
            listener.accept()
    log = getattr(small, engine).text()
    assert log.count("reason=unsigned") == 3
    assert log.count("does the other side know the same secret?") == 1
