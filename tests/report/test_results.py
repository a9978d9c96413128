"""Means, ratios and parts, against values computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.collect.sweep import SweepData, read_sweep
from toolkit.report.results import Stats, ran_on, stats, summarize
from toolkit.settings.deployment import Deployment

CONFTEST: dict[str, Any] = {
    "name": "by-hand",
    "target": {"kind": "embedded"},
    "model": {"name": "tiny-qwen3", "served_name": "tiny", "max_model_len": 8192},
    "kv": {"stats_interval": 1, "backends": ["UCX"], "buffer_device": "cpu"},
    "sweep": {"prompt_lengths": [1024, 4096], "turns": 3, "repeats": 1, "output_tokens": 16},
}
NODES = {
    "prefill-1": "a: 8 x H200",
    "decode-1": "b: 4 x H200",
    "decode-2": "c: 8 x H200",
    "router": "d: 2 cores",
}
SETTINGS = Deployment.model_validate(CONFTEST)


def test_stats() -> None:
    assert stats([10.0, 20.0, 60.0]) == Stats(3, 30.0, 20.0, 52.0)
    assert stats([5.0]) == Stats(1, 5.0, 5.0, 5.0)
    assert stats([]) is None


def test_a_right_sweep(data: SweepData) -> None:
    results = summarize("sweep", data, SETTINGS, {"vllm": "0.29.0"}, NODES)
    assert results.reasons == ()
    assert results.valid
    assert results.outputs_identical
    short, long = results.points
    assert short.off.ttft_ms == Stats(2, 230.0, 230.0, 238.0)
    assert short.on.ttft_ms == Stats(2, 120.0, 120.0, 128.0)
    assert short.off.first_turn_ttft_ms == Stats(1, 210.0, 210.0, 210.0)
    assert long.on.first_turn_prefill_ms == Stats(1, 885.0, 885.0, 885.0)
    assert short.ttft_ratio == pytest.approx(230 / 120)
    assert short.prefill_ratio == pytest.approx(220 / 110)
    assert results.ttft_ratio_longest == pytest.approx(1000 / 250)
    assert results.prefill_ratio_longest == pytest.approx(980 / 230)
    assert short.kv_transfer is not None
    assert (short.kv_transfer.ms, short.kv_transfer.mb) == (30.0, 33.0)
    assert short.on_compute_ms == 110 - 30
    assert long.kv_transfer is not None
    assert (long.kv_transfer.ms, long.kv_transfer.mb, long.kv_transfer.readbacks) == (80.0, 128.0, 2)
    assert long.on_compute_ms == 230 - 80
    assert len(results.rows) == 12
    assert results.name == "sweep"
    assert results.cautions == (
        "A mean is over 2 requests only: raise sweep.repeats for figures to rely on.",
    )


def test_first_turns_far_apart_are_told(make_folder: Callable[..., Path], change_row: Any) -> None:
    rows = change_row("on", "4096-0", 1, prefill_ms=2000.0, ttft_ms=2010.0, total_ms=2500.0)
    cautions = summarize("sweep", read_sweep(make_folder(on=rows)), SETTINGS, {}, {}).cautions
    assert len(cautions) == 2
    assert cautions[1].startswith("Both legs compute a first turn whole, yet prefill takes ")
    assert " and 2,000 ms ON at 4,096 tokens: one leg" in cautions[1]
    assert "1,024" not in cautions[1]


def test_ranks_of_a_tensor_parallel_engine_transfer_side_by_side(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    log = folder / "on" / "logs" / "prefill-1.log"
    log.write_text(
        log.read_text().replace("transfers=1,", "transfers=8,").replace("transfers=2,", "transfers=16,")
    )
    point = summarize("sweep", read_sweep(folder), SETTINGS, {}, {}).points[0]
    assert point.kv_transfer is not None
    assert point.kv_transfer.ms == 30.0
    assert point.kv_transfer.transfers == 16
    assert point.kv_transfer.mb == 8 * 33.0


def test_failed_requests_are_in_no_mean(make_folder: Callable[..., Path], change_row: Any) -> None:
    rows = change_row("off", "4096-0", 3, error="APIError: x", ttft_ms=0.0, prefill_ms=None, path=None)
    results = summarize("sweep", read_sweep(make_folder(off=rows)), SETTINGS, {}, {})
    assert results.points[1].off.ttft_ms == Stats(1, 980.0, 980.0, 980.0)
    assert not results.valid


def test_a_leg_without_rows_has_no_figures_and_no_ratio(make_folder: Callable[..., Path]) -> None:
    results = summarize("sweep", read_sweep(make_folder(on=[], log="")), SETTINGS, {}, {})
    assert results.points[0].on.ttft_ms is None
    assert results.points[0].kv_transfer is None
    assert results.ttft_ratio_longest is None
    assert not results.valid
    assert not results.outputs_identical


def test_what_it_ran_on() -> None:
    assert ran_on(SETTINGS, {})["summary"] == "one machine, CPU engines, 1 prefill + 1 decode, UCX"
    cloud = Deployment.model_validate(
        {
            **CONFTEST,
            "target": {"kind": "parallelcluster", "cluster_name": "pd", "region": "ap-south-1"},
            "legs": {"prefill": {"tensor_parallel": 8}, "decode": {"tensor_parallel": 8, "replicas": 2}},
            "kv": {},
        }
    )
    assert ran_on(cloud, NODES)["summary"] == "pd (ap-south-1), 1 prefill + 2 decode, TP8+TP8, LIBFABRIC"
    assert ran_on(cloud, NODES)["device"] == "cuda"
    assert ran_on(cloud, NODES)["hardware"] == "8 x H200; 4 x H200"
    assert ran_on(cloud, NODES)["nodes"] == NODES
