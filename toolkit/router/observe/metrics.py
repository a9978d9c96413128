"""Prometheus metrics of one router, in a registry of their own.

Finished requests are counted in plain dictionaries (a microsecond each, where a client library's counters
take one apiece); they become metric families when they are scraped. All of it belongs to one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from time import time
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from toolkit import __version__
from toolkit.router.observe.live import Live
from toolkit.router.observe.record import RequestRecord

CONTENT_TYPE = CONTENT_TYPE_LATEST
HANDLE_EVENTS = ("saved", "replaced", "hit", "miss", "expired", "evicted", "returned", "dropped")
READBACKS = ("hit", "declined", "unknown", "none")

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0, 120.0)
# A place is usually free at once: the interesting part begins lower.
_QUEUE_SECONDS = (0.001, 0.005, *_SECONDS)


class FailedLeg(Protocol):
    @property
    def role(self) -> str: ...
    @property
    def url(self) -> str: ...


class Failure(Protocol):
    """How an engine failed a request; `status` is its answer's, None when it gave none."""

    @property
    def leg(self) -> FailedLeg: ...
    @property
    def sent(self) -> bool: ...
    @property
    def status(self) -> int | None: ...


class Distribution:
    """A histogram of seconds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def add_to(self, family: HistogramMetricFamily, labels: tuple[str, ...]) -> None:
        bounds = [*(str(bound) for bound in self._bounds), "+Inf"]
        buckets: list[tuple[str, float]] = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(labels, buckets, self._sum)


class Metrics:
    """Counts what records say; `live` is read when it is scraped. The counters are there to be read."""

    def __init__(self, live: Live) -> None:
        self.started_at = time()
        # (path, status, stream, outcome)
        self.requests: Counter[tuple[str | None, int | None, bool, str]] = Counter()
        # (path, reason)
        self.paths: Counter[tuple[str, str]] = Counter()
        self.readbacks: Counter[str] = Counter(dict.fromkeys(READBACKS, 0))
        self.declined: Counter[str] = Counter()
        self.refusals: Counter[int] = Counter()
        # (role, url, kind)
        self.engine_failures: Counter[tuple[str, str, str]] = Counter()
        self.anonymous = self.client_gone = self.retries = self.prompt_tokens = self.kv_read_tokens = 0
        self.queue = Distribution(_QUEUE_SECONDS)
        self.prefill: dict[str, Distribution] = {}
        self.ttft: dict[str, Distribution] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_Requests(self))
        self._registry.register(_LiveState(live))
        ProcessCollector(registry=self._registry)

    def ended(self, record: RequestRecord) -> None:
        """Counts an ended record."""
        path, outcome = record.path, record.outcome
        self.requests[path, record.status, record.stream, outcome] += 1
        self.retries += record.retries
        if record.queue_ms is not None:
            self.queue.observe(record.queue_ms / 1000)
        if outcome == "refused" and record.status is not None:
            self.refusals[record.status] += 1
        elif outcome == "client-gone":
            self.client_gone += 1
        if path is not None:
            self._generation(record, path)

    def refused(self, status: int) -> None:
        """Counts what was refused before it became a request, and has no record."""
        self.refusals[status] += 1

    def engine_failed(self, failure: Failure) -> None:
        """Counts a failed request to an engine, by kind: `connect`, `broken`, or its answer, as in `5xx`."""
        if failure.status is not None:
            kind = f"{failure.status // 100}xx"
        else:
            kind = "broken" if failure.sent else "connect"
        self.engine_failures[failure.leg.role, failure.leg.url, kind] += 1

    def failures_of(self, role: str, url: str) -> int:
        """Failed requests to one leg, of every kind."""
        return sum(count for (r, u, _), count in self.engine_failures.items() if (r, u) == (role, url))

    def text(self) -> bytes:
        """The exposition in Prometheus' text format; its content type is CONTENT_TYPE."""
        return generate_latest(self._registry)

    def _generation(self, record: RequestRecord, path: str) -> None:
        self.paths[path, record.reason or "untold"] += 1
        readback = record.readback
        self.readbacks[readback] += 1
        if readback == "declined":
            self.declined[record.declined or "untold"] += 1
        if record.identity == "none":
            self.anonymous += 1
        self.prompt_tokens += record.prompt_tokens or 0
        self.kv_read_tokens += record.kv_read_tokens or 0
        if record.prefill_ms is not None:
            _of(self.prefill, path).observe(record.prefill_ms / 1000)
        if record.ttft_ms is not None:
            _of(self.ttft, path).observe(record.ttft_ms / 1000)


def _of(distributions: dict[str, Distribution], path: str) -> Distribution:
    found = distributions.get(path)
    if found is None:
        found = distributions[path] = Distribution()
    return found


class _Requests(Collector):
    """What finished requests added up to."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        kept = self._metrics
        form = "interpreted" if __file__.endswith(".py") else "compiled"
        yield InfoMetricFamily(
            "pd_router_build", "The toolkit this router is of", value={"version": __version__, "form": form}
        )
        yield GaugeMetricFamily(
            "pd_router_start_time_seconds", "Unix time of its start", value=kept.started_at
        )
        yield from self._counters()
        yield _histogram("pd_router_prefill_seconds", "Time of the prefill leg", kept.prefill)
        yield _histogram("pd_router_ttft_seconds", "Time to the first byte of a stream", kept.ttft)
        queue = HistogramMetricFamily("pd_router_queue_seconds", "Time that a request waited for a place")
        kept.queue.add_to(queue, ())
        yield queue

    def _counters(self) -> Iterator[Metric]:
        kept = self._metrics
        requests = {
            (path or "none", str(status or "none"), str(stream).lower(), outcome): count
            for (path, status, stream, outcome), count in kept.requests.items()
        }
        labels = ("path", "status", "stream", "outcome")
        yield _counter("pd_router_requests", "Requests ended", labels, requests.items())
        yield _counter(
            "pd_router_path", "Requests by path and why it was taken", ("path", "reason"), kept.paths.items()
        )
        yield _counter(
            "pd_router_readback", "What became of offered blocks", ("outcome",), kept.readbacks.items()
        )
        text = "Offers of which prefill read nothing"
        yield _counter("pd_router_readback_declined", text, ("reason",), kept.declined.items())
        yield _counter(
            "pd_router_refusals", "Requests that the router refused", ("status",), kept.refusals.items()
        )
        text = "Failed engine requests"
        of_leg = ("role", "url", "kind")
        yield _counter("pd_router_upstream_errors", text, of_leg, kept.engine_failures.items())
        by_leg: Counter[tuple[str, str]] = Counter()
        for (role, url, _), count in kept.engine_failures.items():
            by_leg[role, url] += count
        text = "Failed engine requests, of every kind"
        yield _counter("pd_router_engine_failures", text, ("role", "url"), by_leg.items())
        for name, text, value in (
            ("anonymous_requests", "Requests without a conversation", kept.anonymous),
            ("client_gone", "Requests whose client left", kept.client_gone),
            ("retries", "Second attempts", kept.retries),
            ("prompt_tokens", "Prompt tokens, as engines counted them", kept.prompt_tokens),
            ("kv_read_tokens", "Prompt tokens that prefill read from decode", kept.kv_read_tokens),
        ):
            yield CounterMetricFamily(f"pd_router_{name}", text, value=value)


class _LiveState(Collector):
    """What is so at the moment of the scrape."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def collect(self) -> Iterator[Metric]:
        live = self._live
        kept, places, limits = live.conversations, live.admission, live.limits
        for name, text, value in (
            ("in_flight", "Requests running now", live.in_flight()),
            ("queue_running", "Requests that hold a place", places.running),
            ("queue_waiting", "Requests that wait for a place", places.waiting),
            ("queue_running_limit", "Places", limits.running),
            ("queue_waiting_limit", "Requests that may wait", limits.waiting),
            ("conversations", "Conversations in the map", len(kept)),
            ("map_bytes", "Bytes of the map", kept.bytes),
            ("map_conversations_limit", "Conversations that the map may hold", limits.conversations),
            ("map_bytes_limit", "Bytes that the map may take", limits.map_bytes),
        ):
            yield GaugeMetricFamily(f"pd_router_{name}", text, value=value)
        events = {event: kept.events.get(event, 0) for event in {*HANDLE_EVENTS, *kept.events}}
        yield _counter("pd_router_handles", "What became of handles", ("event",), sorted(events.items()))
        text = "What became of leases on decode's blocks"
        yield _counter("pd_router_leases", text, ("event",), live.leases().items())
        yield from self._legs()

    def _legs(self) -> Iterator[Metric]:
        labels = ("role", "url")
        healthy = GaugeMetricFamily("pd_router_leg_healthy", "1 if it gets traffic", labels=labels)
        draining = GaugeMetricFamily("pd_router_leg_draining", "1 if it only ends what it has", labels=labels)
        in_flight = GaugeMetricFamily("pd_router_leg_in_flight", "Requests it answers now", labels=labels)
        pending = GaugeMetricFamily(
            "pd_router_leg_pending_tokens", "Prompt tokens it was sent to compute by itself", labels=labels
        )
        for leg in self._live.legs():
            name = (leg.role, leg.url)
            healthy.add_metric(name, float(leg.healthy))
            draining.add_metric(name, float(leg.draining))
            in_flight.add_metric(name, leg.in_flight)
            pending.add_metric(name, leg.pending_tokens)
        yield from (healthy, draining, in_flight, pending)


def _counter(
    name: str, text: str, labels: tuple[str, ...], counts: Iterable[tuple[str | int | tuple[str, ...], int]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, count in counts:
        family.add_metric(key if isinstance(key, tuple) else (str(key),), count)
    return family


def _histogram(name: str, text: str, by_path: dict[str, Distribution]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("path",))
    for path, distribution in by_path.items():
        distribution.add_to(family, (path,))
    return family
