"""The client against a router on a real socket: rows, failures, resumption."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from toolkit.bench.client import run
from toolkit.bench.row_file import RowFile
from toolkit.errors import ToolkitError
from toolkit.plan.sweep import Schedule


def sweep(router: Any, schedule: Schedule, path: Path) -> bool:
    return asyncio.run(run(schedule, router.url, RowFile(path, schedule.turns)))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def asked(router: Any, conversation: str) -> list[dict[str, Any]]:
    return [body for body in router.requests if conversation in body["conversation_id"]]


def test_the_whole_as_a_job_runs_it(router: Any, schedule: Schedule, tmp_path: Path) -> None:
    (tmp_path / "schedule.json").write_text(schedule.to_json())
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "toolkit.bench", "--schedule", str(tmp_path / "schedule.json")]
    command += ["--router", router.url, "--rows", str(rows)]
    before = time.time()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENAI_API_KEY": "sk-secret"},
    )
    assert done.returncode == 0, done.stderr
    written = read(rows)
    assert [(row["conversation"], row["turn"]) for row in written] == [
        (conversation.id, turn) for conversation in schedule.conversations for turn in (1, 2, 3)
    ]
    assert [row["path"] for row in written] == ["prefill", "readback", "readback"] * 4
    assert [row["prefill_ms"] for row in written] == [80.25, 12.5, 12.5] * 4
    assert all(row["error"] is None and row["leg"] == "on" for row in written)
    assert all(row["output_tokens"] == 6 for row in written)
    # The opening chunk has no content: the first token comes 20 ms after it.
    assert all(20 <= row["ttft_ms"] <= row["total_ms"] for row in written)
    assert all(before <= row["started_at"] <= time.time() for row in written)
    assert router.authorization == {"Bearer sk-secret"}
    assert "on 400-0 turn 1/3: prefill" in done.stderr
    assert "sk-secret" not in done.stderr + rows.read_text()
    note = json.loads((tmp_path / "client.json").read_text())
    assert note == {"attempts": 1, "utc_offset_s": time.localtime().tm_gmtoff}


def test_prompts_have_the_points_length_and_grow_by_what_was_said(
    router: Any, schedule: Schedule, tmp_path: Path
) -> None:
    assert sweep(router, schedule, tmp_path / "rows.jsonl")
    last = [row for row in read(tmp_path / "rows.jsonl") if row["turn"] == 3]
    for row in last:
        assert abs(row["prompt_tokens"] - row["prompt_length"]) <= row["prompt_length"] * 0.01
    bodies = asked(router, "900-1")
    assert [len(body["messages"]) for body in bodies] == [1, 3, 5]
    assert bodies[2]["messages"][:3] == bodies[1]["messages"]
    reply = bodies[1]["messages"][1]
    seed = hashlib.sha256(json.dumps(bodies[0]["messages"]).encode()).digest()
    assert reply == {"role": "assistant", "content": "".join(f"t{seed[i]} " for i in range(6))}


def test_what_is_asked_of_the_engine(router: Any, schedule: Schedule, tmp_path: Path) -> None:
    assert sweep(router, schedule, tmp_path / "rows.jsonl")
    body = asked(router, "400-0")[0]
    del body["messages"]
    assert body == {
        "model": "tiny",
        "conversation_id": "on-400-0-1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 6,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 5,
        "return_tokens_as_token_ids": True,
    }
    assert router.paths_asked_for == {"readback"}


@pytest.mark.parametrize(("token_ids", "known"), [("logprobs", True), ("field", True), ("none", False)])
def test_digest_and_first_token(
    router: Any, schedule: Schedule, tmp_path: Path, token_ids: str, known: bool
) -> None:
    router.token_ids = token_ids
    assert sweep(router, schedule, tmp_path / "rows.jsonl")
    row = read(tmp_path / "rows.jsonl")[0]
    seed = hashlib.sha256(json.dumps(asked(router, "400-0")[0]["messages"]).encode()).digest()
    tokens = [seed[i] for i in range(6)]
    output = tokens if known else "".join(f"t{token} " for token in tokens)
    assert row["output_digest"] == hashlib.sha256(json.dumps([output, "length"]).encode()).hexdigest()
    assert row["first_token"] == (tokens[0] if known else None)
    assert row["first_logprob"] == -tokens[0] / 100
    named = token_ids == "logprobs"
    assert row["first_top"] == ({str(tokens[0]): -tokens[0] / 100} if named else None)


def test_off_and_on_say_the_same(router: Any, schedule: Schedule, tmp_path: Path) -> None:
    assert sweep(router, schedule, tmp_path / "on" / "rows.jsonl")
    router.readback = False
    assert sweep(router, dataclasses.replace(schedule, leg="off"), tmp_path / "off" / "rows.jsonl")
    on, off = (read(tmp_path / leg / "rows.jsonl") for leg in ("on", "off"))
    assert [row["output_digest"] for row in on] == [row["output_digest"] for row in off]
    assert {row["path"] for row in off} == {"prefill"}
    for conversation in schedule.conversations:
        said = [
            [body["messages"] for body in asked(router, f"{leg}-{conversation.id}")] for leg in ("on", "off")
        ]
        assert said[0] == said[1] != []


def test_the_warm_up_takes_both_paths_and_leaves_no_row(
    router: Any, schedule: Schedule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(router, schedule, tmp_path / "rows.jsonl")
    assert [len(body["messages"]) for body in router.requests[:2]] == [1, 3]
    assert len(asked(router, "warm-up")) == 2
    assert "warm-up" not in (tmp_path / "rows.jsonl").read_text()
    assert "warm-up turn 2: readback" in capsys.readouterr().err


def test_a_failed_warm_up_starts_nothing(router: Any, schedule: Schedule, tmp_path: Path) -> None:
    router.fail = {("warm-up", 2): "503"}
    with pytest.raises(ToolkitError, match="warm-up request failed: InternalServerError 503"):
        sweep(router, schedule, tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("503", "InternalServerError 503: "),
        ("error event", "APIError: engine died"),
        ("cut", "ToolkitError: the stream ended without finish_reason or usage"),
    ],
)
def test_a_failed_request_is_a_row_and_ends_its_conversation(
    router: Any, schedule: Schedule, tmp_path: Path, how: str, error: str
) -> None:
    router.fail = {("400-1", 2): how}
    assert not sweep(router, schedule, tmp_path / "rows.jsonl")
    rows = read(tmp_path / "rows.jsonl")
    assert len(rows) == 3 + 2 + 3 + 3
    (failed,) = [row for row in rows if row["error"]]
    assert (failed["conversation"], failed["turn"]) == ("400-1", 2)
    assert failed["error"].startswith(error)
    assert len(failed["error"]) <= 300
    # No retry: the warm-up apart, one request a row.
    assert len(router.requests) == len(rows) + 2


def test_resume_keeps_whole_conversations_and_redoes_the_rest_under_a_fresh_id(
    router: Any, schedule: Schedule, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    router.fail = {("400-1", 3): "503", ("900-1", 1): "cut"}
    assert not sweep(router, schedule, path)
    kept = [row for row in read(path) if row["conversation"] in ("400-0", "900-0")]
    with path.open("a") as file:
        file.write('{"leg": "on", "prompt_le')
    router.fail, router.requests = {}, []
    assert sweep(router, schedule, path)
    rows = read(path)
    assert [row for row in rows if row["conversation"] in ("400-0", "900-0")] == kept
    assert sorted((row["conversation"], row["turn"]) for row in rows) == [
        (conversation.id, turn) for conversation in schedule.conversations for turn in (1, 2, 3)
    ]
    ids = {body["conversation_id"] for body in router.requests}
    assert ids == {"on-warm-up-2", "on-400-1-2", "on-900-1-2"}


def test_nothing_left_to_do_asks_nothing(router: Any, schedule: Schedule, tmp_path: Path) -> None:
    assert sweep(router, schedule, tmp_path / "rows.jsonl")
    before = (tmp_path / "rows.jsonl").read_text()
    router.requests = []
    assert sweep(router, schedule, tmp_path / "rows.jsonl")
    assert router.requests == []
    assert (tmp_path / "rows.jsonl").read_text() == before


def test_concurrency_within_a_point_and_no_sizing_meanwhile(
    router: Any, schedule: Schedule, tmp_path: Path
) -> None:
    assert sweep(router, dataclasses.replace(schedule, concurrency=2), tmp_path / "rows.jsonl")
    assert router.most_running == 2
    assert router.tokenized_while_running == 0
    rows = read(tmp_path / "rows.jsonl")
    assert [row["prompt_length"] for row in rows] == [400] * 6 + [900] * 6


def test_one_at_a_time(router: Any, schedule: Schedule, tmp_path: Path) -> None:
    assert sweep(router, schedule, tmp_path / "rows.jsonl")
    assert router.most_running == 1


def test_no_router(schedule: Schedule, tmp_path: Path) -> None:
    # Port 9 (discard) answers nowhere.
    with pytest.raises(ToolkitError, match=r"cannot size prompts: POST http://127.0.0.1:9/tokenize"):
        asyncio.run(run(schedule, "http://127.0.0.1:9", RowFile(tmp_path / "rows.jsonl", 3)))


def test_a_wrong_schedule_file_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "schedule.json").write_text("[]")
    command = [sys.executable, "-m", "toolkit.bench", "--schedule", str(tmp_path / "schedule.json")]
    command += ["--router", "http://127.0.0.1:9", "--rows", str(tmp_path / "rows.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "not a sweep schedule" in done.stderr
