"""Lease counts on the engine's own /metrics, on the way that vLLM has for the figures of its connectors."""

from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import stats as stock
from vllm.v1.metrics.utils import create_metric_per_engine

from pd_connector.leases import COUNTS, LeaseBook

GAUGES = ("held", "held_tokens", "threshold")
_TEXT = {
    "granted": "Leases granted to finished requests.",
    "renewed": "Leases renewed.",
    "claimed": "Leases claimed for a read.",
    "refused": "Renewals, claims and reads refused: the lease had ended, or another turn has it.",
    "read": "Leases that ended because their blocks were read.",
    "released": "Leases that ended because they were released.",
    "given_up": "Leases given up because blocks ran short.",
    "expired": "Leases that ended because their time was over.",
    "held": "Leases held now.",
    "held_tokens": "Tokens whose blocks are held under leases now.",
    "threshold": "Tokens from which on a read from decode is worth it.",
}

_StockStats: Any = stock.NixlKVConnectorStats
_StockProm: Any = stock.NixlPromMetrics


class Stats(_StockStats):  # type: ignore[misc]
    """vLLM's figures of transfers, and per lease count a list: of additions, and for gauges of states."""

    def reset(self) -> None:
        super().reset()
        self.data |= {f"pd_{name}": [] for name in (*COUNTS, *GAUGES)}

    def is_empty(self) -> bool:
        return bool(super().is_empty()) and not any(
            self.data.get(f"pd_{name}") for name in (*COUNTS, *GAUGES)
        )

    def reduce(self) -> dict[str, int | float]:
        """For the log line of the server's statistics."""
        figures: dict[str, int | float] = dict(super().reduce()) if self.num_successful_transfers else {}
        held, given_up = self.data.get("pd_held"), self.data.get("pd_given_up")
        if held:
            figures["Leases held"] = held[-1]
        if given_up:
            figures["Leases given up"] = sum(given_up)
        return figures


def _exported(name: str) -> str:
    return "pd_connector:" + ("kv_recompute_threshold_tokens" if name == "threshold" else f"leases_{name}")


class Tally:
    """What changed in a book since it was last asked."""

    def __init__(self, book: LeaseBook, threshold: Callable[[], int]) -> None:
        self._book = book
        self._threshold = threshold
        self._told: dict[str, int] = {}

    def since_last(self) -> Stats | None:
        """None if nothing changed."""
        now = self._book.summary() | {"threshold": self._threshold()}
        if now == self._told:
            return None
        stats = Stats()
        for name, count in now.items():
            change = count if name in GAUGES else count - self._told.get(name, 0)
            if change or name in GAUGES:
                stats.data[f"pd_{name}"].append(change)
        self._told = now
        return stats


class PromMetrics(_StockProm):  # type: ignore[misc]
    """vLLM's own, and ours under `pd_connector:`."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._pd: dict[str, Any] = {}
        for name in (*COUNTS, *GAUGES):
            kind = self._gauge_cls if name in GAUGES else self._counter_cls
            metric = kind(name=_exported(name), documentation=_TEXT[name], labelnames=labelnames)
            self._pd[name] = create_metric_per_engine(metric, self.per_engine_labelvalues)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        super().observe(transfer_stats_data, engine_idx)
        for name, metric in self._pd.items():
            for value in transfer_stats_data.get(f"pd_{name}", ()):
                if name in GAUGES:
                    metric[engine_idx].set(value)
                else:
                    metric[engine_idx].inc(value)
