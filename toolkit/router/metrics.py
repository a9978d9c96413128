"""Prometheus metrics of one router, in a registry of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from toolkit.router.conversations import Conversations
from toolkit.router.engines import Leg
from toolkit.router.inflight import InFlight
from toolkit.router.record import RequestRecord

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0, 120.0)


class Metrics:
    """Counts what records say; the map and the legs are read when they are scraped."""

    def __init__(self, conversations: Conversations, legs: Iterable[Leg], in_flight: InFlight) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_LiveState(conversations, list(legs), in_flight))
        self._requests = Counter(
            "pd_router_requests",
            "Requests ended",
            ("path", "status", "stream", "outcome"),
            registry=self._registry,
        )
        self._anonymous = Counter(
            "pd_router_anonymous_requests", "Requests without a conversation", registry=self._registry
        )
        self._retries = Counter("pd_router_retries", "Second attempts", registry=self._registry)
        self._failures = Counter(
            "pd_router_engine_failures", "Failed engine requests", ("role", "url"), registry=self._registry
        )
        self._read = Counter(
            "pd_router_kv_read_tokens", "Prompt tokens that prefill read from decode", registry=self._registry
        )
        self._prefill = self._histogram("pd_router_prefill_seconds", "Time of the prefill leg")
        self._ttft = self._histogram("pd_router_ttft_seconds", "Time to the first byte of a stream")

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, ("path",), buckets=_SECONDS, registry=self._registry)

    def engine_failed(self, leg: Leg) -> None:
        self._failures.labels(leg.role, leg.url).inc()

    def ended(self, record: RequestRecord) -> None:
        path = record.path or "none"
        status = "none" if record.status is None else str(record.status)
        self._requests.labels(path, status, str(record.stream).lower(), record.outcome).inc()
        self._retries.inc(record.retries)
        if record.path is not None and record.conversation is None:
            self._anonymous.inc()
        self._read.inc(record.kv_read_tokens or 0)
        if record.prefill_ms is not None:
            self._prefill.labels(path).observe(record.prefill_ms / 1000)
        if record.ttft_ms is not None:
            self._ttft.labels(path).observe(record.ttft_ms / 1000)

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self._registry)


class _LiveState(Collector):
    def __init__(self, conversations: Conversations, legs: list[Leg], in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._conversations = conversations
        self._legs = legs

    def collect(self) -> Iterator[Metric]:
        kept = self._conversations
        yield GaugeMetricFamily("pd_router_in_flight", "Requests running now", value=self._in_flight.count)
        yield GaugeMetricFamily("pd_router_conversations", "Handles in the map", value=len(kept))
        yield GaugeMetricFamily("pd_router_map_bytes", "Bytes of the map", value=kept.size_bytes)
        events = CounterMetricFamily("pd_router_handles", "What became of handles", labels=("event",))
        for event in ("saved", "replaced", "hit", "miss", "expired", "evicted", "returned"):
            events.add_metric((event,), kept.events[event])
        yield events
        healthy = GaugeMetricFamily("pd_router_leg_healthy", "1 if it gets traffic", labels=("role", "url"))
        for leg in self._legs:
            healthy.add_metric((leg.role, leg.url), float(leg.healthy))
        yield healthy
