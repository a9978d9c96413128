"""Windows become rows, bounds hold or do not, and noise is said."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from bench.router import results, table
from bench.router.cited import CITED
from bench.router.results import Report, Row
from bench.router.window import Window


def window(cpu_ms: float = 1.0, first_ms: float = 1.0, strange: float = 0.0, **paths: int) -> Window:
    """A second with 1000 requests of 10 events each."""
    return Window(
        seconds=1.0,
        cpu_s=cpu_ms,
        load_cpu_s=0.5,
        requests=1000,
        events=10_000,
        first_s=(first_ms / 2000, first_ms / 1000, first_ms / 100),
        paths=Counter({name.replace("_", "-"): count for name, count in paths.items()}),
        strange=strange,
    )


@pytest.mark.parametrize(("ours", "holds"), [(0.7, True), (0.8, True), (0.81, False), (2.0, False)])
def test_cpu_per_request_is_bound_by_the_others(ours: float, holds: bool) -> None:
    row = results.cpu_row("x", {"ours": [window(ours)], "peer": [window(1.0)]})
    assert (row.ours, row.peer, row.ratio, row.holds) == (
        pytest.approx(ours),
        1.0,
        pytest.approx(ours),
        holds,
    )


@pytest.mark.parametrize(("cpu_ms", "holds"), [(0.219, True), (0.221, False)])
def test_cpu_per_chunk_has_a_bound_of_its_own(cpu_ms: float, holds: bool) -> None:
    case = {"ours": [window(cpu_ms)], "peer": [window(0.1)], "floor": [window(0.05)]}
    row = results.chunk_row("x", case)
    assert (row.ours, row.peer, row.floor) == (
        pytest.approx(100 * cpu_ms),
        pytest.approx(10),
        pytest.approx(5),
    )
    assert row.holds == holds


@pytest.mark.parametrize(
    ("floor_ms", "cpu_ms", "holds"),
    [(0.219, 0.3, False), (0.221, 0.3, None), (0.3, 0.219, True), (0.3, 0.31, None)],
)
def test_a_chunk_is_not_judged_where_a_bare_relay_is_above_the_bound(
    floor_ms: float, cpu_ms: float, holds: bool | None
) -> None:
    case = {"ours": [window(cpu_ms)], "peer": [window(0.3)], "floor": [window(floor_ms)]}
    row = results.chunk_row("a chunk", case)
    made = Report({}, {}, [row])
    last = table.text(made, ()).splitlines()[-1]
    assert (row.holds, row.unjudged, made.holds) == (holds, holds is None, holds is True)
    assert last.startswith({True: "all bounds hold", False: "NOT HELD: a chunk", None: "NOT JUDGED"}[holds])


def test_medians_are_over_the_quiet_rounds_where_half_are_quiet() -> None:
    loud = window(9.0, strange=0.5)
    quiet = [window(1.0), window(1.2), window(1.1)]
    assert results.typical([*quiet, loud, loud], results.cpu_per_request) == (pytest.approx(1.1), False)
    assert results.typical([window(1.0), loud, loud], results.cpu_per_request) == (9.0, True)
    row = results.cpu_row("x", {"ours": [loud], "peer": [window(1.0)]})
    assert row.noisy


@pytest.mark.parametrize(("ours", "holds"), [(1.4, True), (1.9, True), (2.0, False)])
def test_added_ttft_is_over_the_floor_and_bound_by_the_others(ours: float, holds: bool) -> None:
    case = {"ours": [window(first_ms=ours)], "peer": [window(first_ms=1.9)], "floor": [window(first_ms=0.9)]}
    row = results.ttft_row("x", case)
    assert (row.ours, row.peer, row.floor) == (
        pytest.approx(ours - 0.9),
        pytest.approx(1.0),
        pytest.approx(0.9),
    )
    assert row.ratio == pytest.approx(ours - 0.9)
    assert row.holds == holds


def test_a_rate_below_the_cores_limit_says_so() -> None:
    full, idle = window(1.0), window(0.5)
    assert results.rate_row("x", {"ours": [full], "peer": [full]}).note == ""
    assert results.rate_row("x", {"ours": [full], "peer": [idle]}).note == "core not full: 100 %, 50 %"


def test_all_three_paths_must_have_run() -> None:
    mixed = window(prefill=2, readback=4, decode_local=4)
    row = results.paths_row("x", {"ours": [mixed, mixed], "peer": []})
    assert (row.ours, row.holds) == (3, True)
    assert row.note == "readback 40 %, decode-local 40 %, prefill 20 %"
    row = results.paths_row("x", {"ours": [window(prefill=5)], "peer": []})
    assert (row.ours, row.holds, row.note) == (1, False, "prefill 100 %")


def report(*holds: bool | None) -> Report:
    rows = [Row(f"row {number}", "ms", 1.5, 3.0, bound="<= 1", holds=one) for number, one in enumerate(holds)]
    return Report(
        {"CPU": "a"},
        {"command of ours": "b"},
        rows,
        [("cpu", "ours", window(prefill=2, decode_local=1))],
        ["look here"],
    )


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        ((True,), "all bounds hold"),
        ((True, False, False), "NOT HELD: row 1; row 2"),
        ((None, True, None), "NOT JUDGED, the floor of this machine is above the bound: row 0; row 2"),
        ((None, False), "NOT HELD: row 1\nNOT JUDGED, the floor of this machine is above the bound: row 0"),
    ],
)
def test_the_table_and_its_verdict(holds: tuple[bool | None, ...], verdict: str) -> None:
    made = report(*holds)
    shown = table.text(made, CITED)
    assert shown.endswith(f"\n{verdict}")
    assert made.holds is ("NOT" not in verdict)
    cell = {True: "yes", None: "?"}[holds[0]]
    assert f"row 0  ms   1.5            3   0.50  <= 1   {cell}" in shown
    assert "! look here" in shown
    assert all("not in this run" in one.source for one in CITED)


def test_json_has_rows_and_rounds() -> None:
    made = json.loads(json.dumps(report(True, False).as_dict()))
    assert made["holds"] is False
    assert [row["holds"] for row in made["rows"]] == [True, False]
    assert made["rows"][0]["ratio"] == 0.5
    assert made["windows"][0]["ttft_ms_median"] == 1.0
    assert made["windows"][0]["paths"] == {"prefill": 2, "decode-local": 1}
    assert "first_s" not in made["windows"][0]
    assert (made["windows"][0]["case"], made["windows"][0]["target"], made["windows"][0]["noisy"]) == (
        "cpu",
        "ours",
        False,
    )
