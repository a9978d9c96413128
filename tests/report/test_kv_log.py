"""The parser of vLLM's KV transfer lines (kv.log: formatted by vLLM 0.29.0's own code)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from toolkit.collect.kv_log import KvLine, merge, parse_kv_lines

LOG = (Path(__file__).parent / "kv.log").read_text()
NEAR = datetime(2026, 11, 29, 17, 0, tzinfo=UTC).timestamp()
LINE = (
    "{prefix}INFO {stamp} [metrics.py:103] KV Transfer metrics: Num successful transfers=1, "
    "Avg xfer time (ms)=30.125, P90 xfer time (ms)=30.125, Avg post time (ms)=1.83, P90 post time (ms)=1.83, "
    "Avg MB per transfer=64.0, Throughput (MB/s)=2124.481, Avg number of descriptors=512.0"
)


def at(*moment: int) -> float:
    return datetime(*moment, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


def test_recorded_lines() -> None:
    lines, unread = parse_kv_lines(LOG, NEAR, UTC)
    assert lines == [
        KvLine(at(2026, 11, 29, 17, 14, 48), 1, 30.125, 30.125, 1.83, 64.0, 512.0),
        KvLine(at(2026, 11, 29, 17, 14, 49), 2, 43.0, 44.6, 2.2, 128.0, 1024.0),
        KvLine(at(2026, 11, 29, 17, 14, 50), 0, 0.0, 0.0, 0.0, 0.0, 0.0),
    ]
    assert len(unread) == 1
    assert "Num succ(EngineCore" in unread[0]


@pytest.mark.parametrize(
    "prefix", ["", "(APIServer pid=12) ", "\x1b[0;36m(APIServer pid=12)\x1b[0;0m ", "Engine 001: "]
)
def test_prefixes(prefix: str) -> None:
    lines, unread = parse_kv_lines(LINE.format(prefix=prefix, stamp="11-29 17:14:48"), NEAR, UTC)
    assert [line.at for line in lines] == [at(2026, 11, 29, 17, 14, 48)]
    assert unread == []


def test_colours_inside_the_line() -> None:
    coloured = LINE.format(prefix="", stamp="\x1b[90m11-29 17:14:48\x1b[0m").replace(
        "INFO", "\x1b[32mINFO\x1b[0m"
    )
    lines, _ = parse_kv_lines(coloured, NEAR, UTC)
    assert lines[0].at == at(2026, 11, 29, 17, 14, 48)


def test_zone_of_the_node() -> None:
    line = LINE.format(prefix="", stamp="11-29 22:44:48")
    lines, _ = parse_kv_lines(line, NEAR, timezone(timedelta(hours=5, minutes=30)))
    assert lines[0].at == at(2026, 11, 29, 17, 14, 48)


@pytest.mark.parametrize(
    ("near", "stamp", "moment"),
    [
        ((2026, 12, 31, 23, 59), "01-01 00:00:10", (2027, 1, 1, 0, 0, 10)),
        ((2027, 1, 1, 0, 1), "12-31 23:59:50", (2026, 12, 31, 23, 59, 50)),
        ((2028, 2, 29, 12, 0), "02-29 12:00:01", (2028, 2, 29, 12, 0, 1)),
    ],
)
def test_the_year_is_the_runs(near: tuple[int, ...], stamp: str, moment: tuple[int, ...]) -> None:
    lines, _ = parse_kv_lines(LINE.format(prefix="", stamp=stamp), at(*near), UTC)
    assert lines[0].at == at(*moment)


def test_a_stamp_that_is_no_date() -> None:
    lines, unread = parse_kv_lines(LINE.format(prefix="", stamp="13-41 17:14:48"), NEAR, UTC)
    assert (lines, len(unread)) == ([], 1)


def test_merge_weighs_by_transfers() -> None:
    lines, _ = parse_kv_lines(LOG, NEAR, UTC)
    merged = merge(lines)
    assert merged is not None
    assert merged.transfers == 3
    assert merged.mean_ms == pytest.approx((30.125 + 2 * 43.0) / 3)
    assert merged.post_ms == pytest.approx((1.83 + 2 * 2.2) / 3)
    assert merged.total_mb == pytest.approx(64 + 2 * 128)
    assert merged.descriptors == pytest.approx((512 + 2 * 1024) / 3)
    assert merged.p90_ms == 44.6


def test_p90_over_single_transfers_is_the_ninth_of_ten() -> None:
    merged = merge([KvLine(0, 1, ms, ms, 0, 1, 1) for ms in (10, 1, 9, 2, 8, 3, 7, 4, 6, 5)])
    assert merged is not None
    assert merged.p90_ms == 9


def test_only_expiries_is_no_transfer() -> None:
    assert merge([KvLine(0, 0, 0, 0, 0, 0, 0)]) is None
    assert merge([]) is None


def test_leases_in_the_line_are_no_transfer_and_no_damage() -> None:
    head = "(APIServer pid=1) INFO 11-29 17:40:01 [metrics.py:103] KV Transfer metrics: "
    fields = (
        "Num successful transfers=1, Avg xfer time (ms)=2.5, P90 xfer time (ms)=2.5, Avg post time (ms)=1.5, "
        "P90 post time (ms)=1.5, Avg MB per transfer=54.0, Throughput (MB/s)=21003.1, "
        "Avg number of descriptors=108.0"
    )
    lines = [
        f"{head}Leases held=3",
        f"{head}Leases held=0, Leases given up=2",
        f"{head}{fields}, Leases held=1",
    ]
    found, unread = parse_kv_lines("\n".join(lines), near=1795970000.0)
    assert unread == []
    assert [line.transfers for line in found] == [1]
