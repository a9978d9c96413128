"""A sweep's folder made by hand: two lengths, one conversation each, three turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from toolkit.collect.sweep import SweepData, read_sweep
from toolkit.plan.row import Row
from toolkit.plan.sweep import plan_sweep
from toolkit.settings.deployment import Deployment

START = datetime(2026, 11, 29, 17, 0, 0, tzinfo=UTC).timestamp()
LENGTHS = (1024, 4096)
# leg, length -> (TTFT, prefill) of turns 1, 2, 3
TIMES = {
    ("off", 1024): ((210.0, 200.0), (220.0, 210.0), (240.0, 230.0)),
    ("on", 1024): ((212.0, 201.0), (110.0, 100.0), (130.0, 120.0)),
    ("off", 4096): ((900.0, 880.0), (980.0, 960.0), (1020.0, 1000.0)),
    ("on", 4096): ((910.0, 885.0), (240.0, 220.0), (260.0, 240.0)),
}
SOFTWARE = {"vllm": "0.29.0", "nixl": "1.4.1"}
NODES = {
    "prefill-1": "node-a: Xeon, 2 cores",
    "decode-1": "node-b: Xeon, 2 cores",
    "router": "node-c: Atom, 1 core",
}
KV_LINE = (
    "(APIServer pid=1) INFO {stamp} [metrics.py:103] KV Transfer metrics: Num successful transfers={n}, "
    "Avg xfer time (ms)={ms}, P90 xfer time (ms)={ms}, Avg post time (ms)=1.5, P90 post time (ms)=1.5, "
    "Avg MB per transfer={mb}, Throughput (MB/s)=2000.0, Avg number of descriptors=512.0\n"
)


def settings(**sweep: Any) -> Deployment:
    return Deployment.model_validate(
        {
            "name": "by-hand",
            "target": {"kind": "embedded"},
            "model": {"name": "tiny-qwen3", "served_name": "tiny", "max_model_len": 8192},
            "kv": {"stats_interval": 1, "backends": ["UCX"], "buffer_device": "cpu"},
            "sweep": {
                "prompt_lengths": list(LENGTHS),
                "turns": 3,
                "repeats": 1,
                "output_tokens": 16,
                **sweep,
            },
        }
    )


def rows_of(leg: str) -> list[Row]:
    """A turn begins every 2 s; the second point 20 s after the first."""
    return [
        Row(
            leg=leg,  # type: ignore[arg-type]
            prompt_length=length,
            conversation=f"{length}-0",
            turn=turn,
            prompt_tokens=length - 100 * (3 - turn),
            output_tokens=16,
            ttft_ms=ttft,
            total_ms=1500.0,
            prefill_ms=prefill,
            path="readback" if leg == "on" and turn > 1 else "prefill",
            kv_read_tokens=length // 2 if leg == "on" and turn > 1 else 0,
            output_digest=f"{length}/{turn}".encode().hex().ljust(64, "0"),
            first_token=length + turn,
            first_logprob=-1.5,
            first_top={length + turn: -1.5, 7: -1.6, 8: -1.7},
            started_at=START + 20 * point + 2 * (turn - 1) + 0.5,
        )
        for point, length in enumerate(LENGTHS)
        for turn, (ttft, prefill) in enumerate(TIMES[leg, length], start=1)
    ]


def kv_log() -> str:
    """A warm-up, two readbacks of 1024 tokens (one a line), two of 4096 (in one line)."""
    lines = ((-9, 1, 500.0, 8.0), (3, 1, 20.0, 32.0), (5, 1, 40.0, 34.0), (27, 2, 80.0, 128.0))
    return "".join(
        KV_LINE.format(
            stamp=datetime.fromtimestamp(START + after, UTC).strftime("%m-%d %H:%M:%S"), n=n, ms=ms, mb=mb
        )
        for after, n, ms, mb in lines
    )


MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Writes a sweep's folder as the flow leaves it; `off`, `on`: rows in place of the right ones."""

    def make(
        name: str = "sweep",
        off: list[Row] | None = None,
        on: list[Row] | None = None,
        log: str | None = None,
        **sweep: Any,
    ) -> Path:
        folder = tmp_path / name
        deployment = settings(**sweep)
        for leg, rows in (("off", off), ("on", on)):
            (folder / leg / "sweep").mkdir(parents=True)
            (folder / leg / "logs").mkdir()
            schedule = plan_sweep(deployment, leg)  # type: ignore[arg-type]
            (folder / leg / "sweep" / "schedule.json").write_text(schedule.to_json())
            lines = [json.dumps(asdict(row)) + "\n" for row in (rows_of(leg) if rows is None else rows)]
            (folder / leg / "sweep" / "rows.jsonl").write_text("".join(lines))
            (folder / leg / "sweep" / "client.json").write_text('{"attempts": 1, "utc_offset_s": 0}')
        (folder / "on" / "logs" / "prefill-1.log").write_text(kv_log() if log is None else log)
        (folder / "settings.json").write_text(deployment.model_dump_json())
        (folder / "software.json").write_text(json.dumps({"software": SOFTWARE, "ran_on": NODES}))
        return folder

    return make


@pytest.fixture
def data(make_folder: MakeFolder) -> SweepData:
    return read_sweep(make_folder("data"))


def changed(rows: list[Row], conversation: str, turn: int, **change: Any) -> list[Row]:
    return [
        replace(row, **change) if (row.conversation, row.turn) == (conversation, turn) else row
        for row in rows
    ]


@pytest.fixture
def change_row() -> Callable[..., list[Row]]:
    """change_row("on", "4096-0", 2, path="prefill"): that leg's rows, one of them changed."""
    return lambda leg, conversation, turn, **change: changed(rows_of(leg), conversation, turn, **change)


@pytest.fixture
def right_rows() -> Callable[[str], list[Row]]:
    return rows_of
