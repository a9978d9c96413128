"""A sweep's folder read: rows checked, KV transfers given to the right point."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from toolkit.collect.rows import read_rows
from toolkit.collect.sweep import SweepData, read_sweep
from toolkit.errors import SettingsError, ToolkitError


def test_each_length_gets_its_own_transfers_and_the_warm_up_none(data: SweepData) -> None:
    assert {length: kv.transfers for length, kv in data.kv.items()} == {1024: 2, 4096: 2}
    assert data.kv[1024].mean_ms == 30.0
    assert data.kv[1024].total_mb == 66.0
    assert data.kv[4096].mean_ms == 80.0
    assert data.kv[4096].total_mb == 256.0
    assert data.problems == ()


def test_a_line_at_the_next_points_first_second_belongs_to_the_point_before(
    make_folder: Callable[..., Path], change_row: Any
) -> None:
    """The last turn of 1024 ends 3 s, the client's rest, before 4096 begins at 17:00:20.5."""
    folder = make_folder(on=change_row("on", "1024-0", 3, total_ms=13_000.0))
    log = folder / "on" / "logs" / "prefill-1.log"
    log.write_text(log.read_text().replace("17:00:05", "17:00:20"))
    assert {length: kv.mean_ms for length, kv in read_sweep(folder).kv.items()} == {1024: 30.0, 4096: 80.0}


def test_a_line_before_its_turn_or_after_the_rest_counts_for_nothing(
    make_folder: Callable[..., Path],
) -> None:
    folder = make_folder()
    log = folder / "on" / "logs" / "prefill-1.log"
    log.write_text(log.read_text().replace("17:00:03", "17:00:01").replace("17:00:05", "17:00:10"))
    assert list(read_sweep(folder).kv) == [4096]


def test_several_prefill_engines(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    log = folder / "on" / "logs" / "prefill-1.log"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2]))
    log.with_name("prefill-2.log").write_text("".join(lines[2:]))
    log.with_name("decode-1.log").write_text("".join(lines))
    assert {length: kv.transfers for length, kv in read_sweep(folder).kv.items()} == {1024: 2, 4096: 2}


def test_the_zone_asked_for_beats_the_clients_note(make_folder: Callable[..., Path]) -> None:
    assert read_sweep(make_folder(), timezone(timedelta(hours=9))).kv == {}


def test_the_zone_the_client_noted(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    (folder / "on" / "sweep" / "client.json").write_text('{"attempts": 1, "utc_offset_s": 32400}')
    assert read_sweep(folder).kv == {}


def test_no_prefill_log_is_a_problem(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    (folder / "on" / "logs" / "prefill-1.log").unlink()
    read = read_sweep(folder)
    assert read.kv == {}
    assert read.problems == ("on/logs holds no prefill-*.log: KV transfers are unknown",)


def test_a_garbled_kv_line_is_a_problem(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(log="INFO 11-29 17:00:03 [metrics.py:103] KV Transfer metrics: Num succ")
    (problem,) = read_sweep(folder).problems
    assert problem.startswith("on/logs/prefill-1.log: unreadable line: INFO 11-29")


def test_a_last_line_cut_short_is_told(make_folder: Callable[..., Path]) -> None:
    path = make_folder() / "on" / "sweep" / "rows.jsonl"
    path.write_text(path.read_text()[:-40])
    read = read_rows(path)
    assert len(read.rows) == 5
    assert read.problems[0].startswith("on/rows.jsonl line 6:")
    assert read.problems[1] == "on/rows.jsonl: the last line is cut short"


def test_a_field_of_the_wrong_type_is_told(make_folder: Callable[..., Path]) -> None:
    path = make_folder() / "off" / "sweep" / "rows.jsonl"
    path.write_text(path.read_text().replace('"turn": 2', '"turn": "two"', 1))
    read = read_rows(path)
    assert len(read.rows) == 5
    assert read.problems[0].startswith("off/rows.jsonl line 2: turn ")


def test_rows_of_the_other_leg_are_told(make_folder: Callable[..., Path], right_rows: Any) -> None:
    assert (
        "on/rows.jsonl holds rows of the other leg" in read_sweep(make_folder(on=right_rows("off"))).problems
    )


@pytest.mark.parametrize("name", ["off/sweep/schedule.json", "on/sweep/rows.jsonl"])
def test_a_missing_file_is_named(make_folder: Callable[..., Path], name: str) -> None:
    folder = make_folder()
    (folder / name).unlink()
    with pytest.raises(ToolkitError, match=rf"{name} is missing[^\n]*\nNext: .*toolkit sweep"):
        read_sweep(folder)


def test_a_schedule_of_another_shape(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    (folder / "on" / "sweep" / "schedule.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"on/sweep/schedule\.json: not a sweep schedule"):
        read_sweep(folder)
