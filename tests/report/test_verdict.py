"""Each fault that makes a sweep invalid, made in an otherwise right one: its reason and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolkit.collect.sweep import SweepData, read_sweep
from toolkit.report.verdict import Verdict, judge
from toolkit.settings.deployment import Deployment

MakeFolder = Callable[..., Path]


def verdict(folder: Path) -> Verdict:
    settings = Deployment.model_validate_json((folder / "settings.json").read_text())
    return judge(read_sweep(folder), settings)


def test_a_right_sweep(make_folder: MakeFolder) -> None:
    assert verdict(make_folder()) == Verdict((), True)


@pytest.mark.parametrize(
    ("leg", "turn", "change", "reason"),
    [
        ("on", 2, {"error": "APIError: x", "path": None}, "on 4096-0 turn 2 failed: APIError: x"),
        ("on", 3, {"output_tokens": 15}, "on 4096-0 turn 3: 15 output tokens, asked for 16"),
        ("on", 2, {"output_digest": "f" * 64}, "4096-0 turn 2: ON's output differs from OFF's"),
        ("on", 2, {"path": "prefill"}, "on 4096-0 turn 2: took path prefill, expected readback"),
        ("on", 3, {"path": "decode-local"}, "on 4096-0 turn 3: took path decode-local, expected readback"),
        ("on", 3, {"path": None}, "on 4096-0 turn 3: took path (not told), expected readback"),
        ("off", 3, {"path": "readback"}, "off 4096-0 turn 3: took path readback, expected prefill"),
        ("off", 3, {"path": "decode-local"}, "off 4096-0 turn 3: took path decode-local, expected prefill"),
        ("on", 1, {"path": "readback"}, "on 4096-0 turn 1: took path readback, expected prefill"),
        (
            "on",
            2,
            {"kv_read_tokens": 0},
            "on 4096-0 turn 2: prefill read nothing from decode (X-KV-Read-Tokens: 0)",
        ),
        (
            "on",
            2,
            {"kv_read_tokens": None},
            "on 4096-0 turn 2: prefill read nothing from decode (X-KV-Read-Tokens: the router did not tell)",
        ),
        ("off", 2, {"prefill_ms": None}, "off 4096-0 turn 2: the router told no prefill time (X-Prefill-Ms)"),
        ("on", 2, {"prompt_tokens": 3990}, "4096-0 turn 2: 3996 prompt tokens OFF, 3990 ON"),
    ],
)
def test_one_wrong_row(
    make_folder: MakeFolder, change_row: Any, leg: str, turn: int, change: dict[str, Any], reason: str
) -> None:
    folder = make_folder(**{leg: change_row(leg, "4096-0", turn, **change)})
    told = verdict(folder).reasons
    # A first turn that read back is one readback more than the log has transfers.
    assert told[0] == reason
    assert len(told) == 1 or change == {"path": "readback"}


def test_prompts_of_another_length_than_the_point(make_folder: MakeFolder, change_row: Any) -> None:
    change = {"prompt_tokens": 3891}
    rows = {leg: change_row(leg, "4096-0", 3, **change) for leg in ("off", "on")}
    assert verdict(make_folder(**rows)).reasons == (
        "off 4096-0 turn 3: 3891 prompt tokens, not within 5 % of 4096",
        "on 4096-0 turn 3: 3891 prompt tokens, not within 5 % of 4096",
    )
    rows = {leg: change_row(leg, "4096-0", 3, prompt_tokens=3892) for leg in ("off", "on")}
    assert verdict(make_folder("within", **rows)).reasons == ()


def test_missing_turns(make_folder: MakeFolder, right_rows: Any) -> None:
    told = verdict(make_folder(off=right_rows("off")[:-2]))
    assert told.reasons == ("off: 4 rows, expected 6", "off 4096-0: no row of turn 2, 3")
    assert not told.outputs_identical


def test_a_turn_told_twice(make_folder: MakeFolder, right_rows: Any) -> None:
    rows = right_rows("off")
    assert verdict(make_folder(off=[*rows, rows[-1]])).reasons == (
        "off: 7 rows, expected 6",
        "off 4096-0: more than one row of turn 3",
    )


def test_a_conversation_that_was_not_planned(make_folder: MakeFolder, right_rows: Any) -> None:
    rows = [replace(row, conversation="4096-9") if row.turn == 3 else row for row in right_rows("off")]
    assert "off: conversation 4096-9 is not in the schedule" in verdict(make_folder(off=rows)).reasons


def test_no_kv_transfer_of_a_length(make_folder: MakeFolder) -> None:
    folder = make_folder()
    log = folder / "on" / "logs" / "prefill-1.log"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]))
    assert verdict(folder).reasons == ("on, 4096 tokens: prefill's log has no KV transfer",)


def test_fewer_transfers_than_readbacks(make_folder: MakeFolder) -> None:
    folder = make_folder()
    log = folder / "on" / "logs" / "prefill-1.log"
    log.write_text(log.read_text().replace("transfers=2,", "transfers=1,"))
    assert verdict(folder).reasons == ("on, 4096 tokens: 2 readbacks, 1 KV transfers in prefill's log",)


def test_a_transfer_longer_than_its_prefill(make_folder: MakeFolder) -> None:
    folder = make_folder()
    log = folder / "on" / "logs" / "prefill-1.log"
    log.write_text(log.read_text().replace("(ms)=80.0", "(ms)=231.0"))
    (reason,) = verdict(folder).reasons
    assert reason.startswith("on, 4096 tokens: a KV transfer takes 231.0 ms on average, longer")


def test_another_schedule_than_the_settings_give(make_folder: MakeFolder) -> None:
    folder = make_folder()
    path = folder / "on" / "sweep" / "schedule.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"turn_tokens": 7}))
    assert verdict(folder).reasons == (
        "on: the schedule is not the one that the sweep's settings give",
        "off and on followed different schedules",
    )


def test_problems_of_reading_are_reasons(data: SweepData, make_folder: MakeFolder) -> None:
    settings = Deployment.model_validate_json((make_folder() / "settings.json").read_text())
    assert judge(replace(data, problems=("line 3 is cut",)), settings).reasons == ("line 3 is cut",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"first_logprob": -1.65}, None),
        (
            {"first_logprob": -1.66},
            "4096-0 turn 2: first token's log-probabilities differ by 0.160, allowed 0.15",
        ),
        ({"first_token": 1}, "4096-0 turn 2: ON's first token 1 is not OFF's 4098"),
        # OFF holds 7 as likely as its own token but for 0.1, and ON says the same of OFF's: a near-tie.
        ({"first_token": 7, "first_logprob": -1.5, "first_top": {7: -1.5, 4098: -1.6}}, None),
        (
            {"first_token": 7, "first_logprob": -1.5, "first_top": {7: -1.5, 4098: -1.7}},
            "4096-0 turn 2: ON's first token 7 is not OFF's 4098",
        ),
        (
            {"first_token": 8, "first_logprob": -1.5, "first_top": {8: -1.5, 4098: -1.6}},
            "4096-0 turn 2: ON's first token 8 is not OFF's 4098",
        ),
        (
            {"first_token": 7, "first_logprob": -1.5, "first_top": {7: -1.5}},
            "4096-0 turn 2: ON's first token 7 is not OFF's 4098",
        ),
        (
            {"first_token": 7, "first_top": None},
            "4096-0 turn 2: ON's first token 7 is not OFF's 4098",
        ),
        ({"first_logprob": None}, "4096-0 turn 2: no log-probability of the first token to compare"),
        ({"output_digest": "f" * 64}, None),
    ],
)
def test_first_token_mode(
    make_folder: MakeFolder, change_row: Any, change: dict[str, Any], reason: str | None
) -> None:
    rows = change_row("on", "4096-0", 2, **change)
    told = verdict(make_folder(on=rows, identical="first_token"))
    assert told.reasons == ((reason,) if reason else ())
    assert told.outputs_identical is ("output_digest" not in change)


def test_first_token_mode_leaves_turns_after_parted_replies_alone(
    make_folder: MakeFolder, right_rows: Any
) -> None:
    """Replies part in turn 2, so turn 3 answers another prompt: not comparable, and not counted against."""
    rows = [
        replace(row, output_digest="f" * 64, first_token=1 if row.turn == 3 else row.first_token)
        if row.turn > 1
        else row
        for row in right_rows("on")
    ]
    assert verdict(make_folder(on=rows, identical="first_token")).reasons == ()


def test_first_token_mode_with_nothing_to_compare(make_folder: MakeFolder, change_row: Any) -> None:
    rows = change_row("on", "4096-0", 1, output_digest="f" * 64)
    assert verdict(make_folder(on=rows, identical="first_token")).reasons == (
        "4096 tokens: no later turn has the same history in both legs, so none is compared",
    )
