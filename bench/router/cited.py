"""Figures of other runs on other machines, named as such: none was measured in the run that shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cited:
    what: str
    value: str
    source: str


_SAMPLE = "measured by us before, not in this run: vLLM 0.33.0's sample disagg_proxy_multiturn.py"
_WHERE = "one core of a 2-core Intel Xeon VM, Python 3.11.7, 2026-11-29, 32 clients, 16 chunks"

CITED = (
    Cited(
        "sample proxy, CPU per request at 4 / 100 / 400 KB", "5.18 / 6.66 / 11.2 ms", f"{_SAMPLE}; {_WHERE}"
    ),
    Cited("sample proxy, requests/s at 4 / 100 / 400 KB", "182 / 141 / 77", f"{_SAMPLE}; {_WHERE}"),
    Cited("sample proxy, added TTFT at 100 KB, 1 / 16 streams", "4.04 / 4.99 ms", f"{_SAMPLE}; {_WHERE}"),
    Cited("sample proxy, CPU per chunk, 64 streams 20 ms apart", "142 us", f"{_SAMPLE}; {_WHERE}"),
)
