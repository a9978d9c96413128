"""vLLM's `KV Transfer metrics:` log lines. Pure: text in, transfers out.

The initiator of a transfer logs it, so a prefill engine's lines are the readbacks from decode (D->P).
Format: vLLM 0.29.0, kv_connector/v1/metrics.py and nixl/stats.py; one line an interval that had any
transfer, one transfer for each tensor-parallel rank of a readback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

MARK = "KV Transfer metrics:"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Our connector's leases stand in the same line; alone where an interval had no transfer.
ONLY_LEASES = re.compile(rf"{MARK}(,? Leases [a-z ]+=\d+)+\s*$")
# Above it a number is a damaged one: sums over a log stay finite below.
MOST = 1e12
STAMP = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")
FIELDS = {
    "Num successful transfers": "transfers",
    "Avg xfer time (ms)": "mean_ms",
    "P90 xfer time (ms)": "p90_ms",
    "Avg post time (ms)": "post_ms",
    "Avg MB per transfer": "mb",
    "Avg number of descriptors": "descriptors",
}


@dataclass(frozen=True)
class KvLine:
    """One interval of one engine. `at`: Unix seconds of the line, whole; `mb`: MiB per transfer."""

    at: float
    transfers: int
    mean_ms: float
    p90_ms: float
    post_ms: float
    mb: float
    descriptors: float


@dataclass(frozen=True)
class KvTransfers:
    """Lines taken together, each weighing as many as it has transfers. `total_mb` in MiB.

    `p90_ms` is the weighted 90th percentile of the lines' own P90: exact while a line tells of one
    transfer, an upper estimate otherwise.
    """

    transfers: int
    mean_ms: float
    p90_ms: float
    post_ms: float
    total_mb: float
    descriptors: float


def parse_kv_lines(text: str, near: float, zone: tzinfo | None = None) -> tuple[list[KvLine], list[str]]:
    """The lines of one engine's log, and the lines that carry the mark but cannot be read.

    `near`: Unix seconds of the run, which gives the year that vLLM does not write. `zone`: of the node
    that wrote the log; None is this machine's.
    """
    lines: list[KvLine] = []
    unread: list[str] = []
    for raw in text.splitlines():
        if MARK not in raw:
            continue
        plain = ANSI.sub("", raw)
        if ONLY_LEASES.search(plain):
            continue
        line = _parse(plain, near, zone)
        if line is None:
            unread.append(plain)
        else:
            lines.append(line)
    return lines, unread


def merge(lines: Iterable[KvLine]) -> KvTransfers | None:
    """None if there was no transfer. Intervals with 0 transfers (only expiries) weigh nothing."""
    kept = [line for line in lines if line.transfers]
    total = sum(line.transfers for line in kept)
    if not total:
        return None

    def mean(name: str) -> float:
        return sum(float(getattr(line, name)) * line.transfers for line in kept) / total

    return KvTransfers(
        transfers=total,
        mean_ms=mean("mean_ms"),
        p90_ms=_p90(kept, total),
        post_ms=mean("post_ms"),
        total_mb=mean("mb") * total,
        descriptors=mean("descriptors"),
    )


def _p90(lines: list[KvLine], total: int) -> float:
    seen = 0
    for line in sorted(lines, key=lambda line: line.p90_ms):
        seen += line.transfers
        if seen * 10 >= total * 9:
            return line.p90_ms
    raise AssertionError("the last line holds the rest")


def _parse(plain: str, near: float, zone: tzinfo | None) -> KvLine | None:
    head, _, tail = plain.partition(MARK)
    stamp = STAMP.search(head)
    pairs = dict(pair.strip().partition("=")[::2] for pair in tail.split(", "))
    if stamp is None or not FIELDS.keys() <= pairs.keys():
        return None
    try:
        values = {field: float(pairs[name]) for name, field in FIELDS.items()}
        at = _unix([int(part) for part in stamp.groups()], near, zone)
    except ValueError:
        return None
    return KvLine(at=at, transfers=int(values.pop("transfers")), **values) if _possible(values) else None


def _possible(values: dict[str, float]) -> bool:
    """NaN is within no bounds. A transfer takes time and moves something; an interval without any is 0."""
    bounded = all(0 <= value <= MOST for value in values.values())
    happened = values["transfers"] == 0 or min(values["mean_ms"], values["mb"], values["descriptors"]) > 0
    return bounded and happened and values["transfers"].is_integer()


def _unix(stamp: list[int], near: float, zone: tzinfo | None) -> float:
    """The moment `MM-DD HH:MM:SS` closest to `near`: a run over New Year has lines of two years."""
    month, day, hour, minute, second = stamp
    year = datetime.fromtimestamp(near, UTC).year
    moments = []
    for candidate in (year - 1, year, year + 1):
        if month == 2 and day == 29 and candidate % 4:
            continue
        local = datetime(candidate, month, day, hour, minute, second, tzinfo=zone)
        moments.append(local.timestamp())
    return min(moments, key=lambda moment: abs(moment - near))
