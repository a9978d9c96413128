import json
from itertools import pairwise

import pytest

from toolkit.router.observe.recent import Recent
from toolkit.router.observe.snapshot import (
    EDGES_MS,
    FRESH_S,
    P95_NEEDS,
    REQUESTS_SHOWN,
    Snapshots,
    Sources,
    snapshot,
)
from toolkit.router.paths.choice import Path, Reason


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sources(parts, metrics):
    return Sources(parts.live, metrics, Recent(size=200))


@pytest.fixture
def end(sources, ended, clock):
    """Ends a request everywhere: `end(path="prefill", ...)`."""

    def end(**fields):
        record = ended(clock(), **fields)
        sources.metrics.ended(record)
        sources.recent.add(record)

    return end


def test_an_idle_router_has_a_whole_snapshot(sources):
    state = json.loads(Snapshots(sources).body())
    assert state["requests"]["total"] == 0
    assert state["conversations"]["hit_rate"] is None
    assert state["paths"] == []
    assert state["latency"]["ttft"] == {}
    assert state["window"] == {
        "size": 200,
        "requests": 0,
        "since": None,
        "failed": 0,
        "refused": 0,
        "client_gone": 0,
        "per_s": 0.0,
    }
    assert state["recent"] == []
    assert state["queue"] == {
        "in_flight": 5,
        "running": 2,
        "waiting": 1,
        "max_concurrent": 8,
        "max_queue": 16,
    }


def test_legs_come_with_their_failures(sources, parts, leg):
    parts.legs[1].healthy = False
    sources.metrics.engine_failures["decode", "http://d:1", "5xx"] = 2
    sources.metrics.engine_failures["decode", "http://d:1", "connect"] = 1
    _, decode = snapshot(sources)["legs"]
    assert decode == {
        "role": "decode",
        "url": "http://d:1",
        "healthy": False,
        "draining": False,
        "in_flight": 0,
        "pending_tokens": 0,
        "failures": 3,
    }
    parts.legs.append(leg("decode", "http://d:2"))
    assert [each["url"] for each in snapshot(sources)["legs"]] == ["http://p:1", "http://d:1", "http://d:2"]


def test_paths_are_counted_with_their_reasons_most_used_first(sources, end):
    for path, reason, count in (("prefill", "first", 3), ("readback", "held", 4), ("readback", "forced", 1)):
        for _ in range(count):
            end(path=path, reason=reason)
    assert snapshot(sources)["paths"] == [
        {
            "path": "readback",
            "count": 5,
            "reasons": [{"reason": "held", "count": 4}, {"reason": "forced", "count": 1}],
        },
        {"path": "prefill", "count": 3, "reasons": [{"reason": "first", "count": 3}]},
    ]


def test_members_of_enums_are_their_words(sources, end):
    end(path=Path.READBACK, reason=Reason.LONG_SUFFIX, ttft_ms=3.0)
    state = json.loads(Snapshots(sources).body())
    reasons = [{"reason": "long-suffix", "count": 1}]
    assert state["paths"] == [{"path": "readback", "count": 1, "reasons": reasons}]
    assert state["latency"]["ttft"]["readback"]["samples"] == 1
    assert (state["recent"][0]["path"], state["recent"][0]["reason"]) == ("readback", "long-suffix")
    assert b'pd_router_path_total{path="readback",reason="long-suffix"} 1.0' in sources.metrics.text()


def test_the_hit_rate_is_of_all_turns(sources, end, parts):
    parts.leases.update(renewed=2)
    end(path="readback", offered=True, kv_read_tokens=60, prompt_tokens=100)
    end(path="readback", offered=True, kv_read_tokens=0, prompt_tokens=100, declined="another history")
    end(path="prefill", prompt_tokens=50)
    end(path="decode-local")
    kept = snapshot(sources)["conversations"]
    assert kept["readback"] == {"hit": 1, "declined": 1, "unknown": 0, "none": 2}
    assert (kept["turns"], kept["hit_rate"]) == (4, 0.25)
    assert (kept["prompt_tokens"], kept["kv_read_tokens"]) == (250, 60)
    assert kept["leases"] == {"renewed": 2}
    assert kept["declined"] == {"another history": 1}
    assert (kept["count"], kept["max_count"], kept["bytes"], kept["max_bytes"]) == (3, 100, 900, 4096)


@pytest.mark.parametrize(
    ("values", "p50", "p95"),
    [
        ([5.0], 5.0, None),
        ([1.0, 9.0], 1.0, None),
        ([float(n) for n in range(1, P95_NEEDS)], 10.0, None),
        ([float(n) for n in range(1, P95_NEEDS + 1)], 10.0, 19.0),
        ([float(n) for n in range(1, 101)], 50.0, 95.0),
    ],
)
def test_percentiles_are_nearest_ranks_and_few_samples_have_no_p95(sources, end, values, p50, p95):
    for value in reversed(values):
        end(path="prefill", prefill_ms=value)
    spread = snapshot(sources)["latency"]["prefill"]["prefill"]
    assert (spread["samples"], spread["p50_ms"], spread["p95_ms"]) == (len(values), p50, p95)


def test_buckets_hold_every_sample_of_the_ring_once(sources, end):
    values = [0.2, 1.0, 1.2, 412.0, 100_000.0, 1e7]
    for value in values:
        end(path="readback", ttft_ms=value)
    # A turn without the figure is no sample of zero.
    end(path="readback")
    end(ttft_ms=3.0)
    latency = snapshot(sources)["latency"]
    counts = latency["ttft"]["readback"]["counts"]
    assert len(counts) == len(EDGES_MS) + 1
    edges = [0, *EDGES_MS, float("inf")]
    for index, count in enumerate(counts):
        assert count == sum(edges[index] < value <= edges[index + 1] for value in values)
    assert sum(counts) == latency["ttft"]["readback"]["samples"] == len(values)
    assert set(latency["ttft"]) == {"readback"}


def test_edges_are_in_order_and_about_evenly_spaced_on_a_log_scale():
    steps = [high / low for low, high in pairwise(EDGES_MS)]
    assert min(steps) > 1.3
    assert max(steps) < 1.7
    assert (EDGES_MS[0], EDGES_MS[-1]) == (1, 100_000)


def test_the_last_requests_are_listed_newest_first(sources, end, clock):
    for number in range(REQUESTS_SHOWN + 5):
        clock.now = 1000.0 + number
        end(request_id=f"r{number}", conversation=b"c1", path="prefill", reason="first", status=200)
    rows = snapshot(sources)["recent"]
    assert [row["request_id"] for row in rows] == [
        f"r{number}" for number in range(REQUESTS_SHOWN + 4, 4, -1)
    ]
    assert rows[0] == {
        "at": 1104.0,
        "request_id": "r104",
        "endpoint": None,
        "path": "prefill",
        "reason": "first",
        "prompt_tokens": None,
        "read_tokens": None,
        "ttft_ms": None,
        "prefill_ms": None,
        "total_ms": 500.0,
        "status": 200,
        "outcome": "ok",
        "failed": False,
        "conversation": "d0f631ca1ddb",
    }


def test_the_window_tells_how_its_requests_ended(sources, end):
    end(status=200)
    end(status=429, outcome="refused")
    end(status=503, outcome="refused")
    end(outcome="client-gone")
    end(status=200, outcome="decode-broke")
    window = snapshot(sources)["window"]
    told = {name: window[name] for name in ("requests", "failed", "refused", "client_gone", "since")}
    assert told == {"requests": 5, "failed": 2, "refused": 1, "client_gone": 1, "since": 1000.0}


@pytest.mark.parametrize(
    ("spacing_s", "count", "per_s"),
    [
        (2.0, 10, 10 / 60),
        # Older than a minute does not count.
        (2.0, 100, 31 / 60),
        # The full ring reaches back 20 s only.
        (0.1, 1000, 200 / 19.9),
    ],
)
def test_the_rate_is_of_the_last_minute_or_of_what_the_ring_holds(
    parts, metrics, ended, spacing_s, count, per_s
):
    sources = Sources(parts.live, metrics, Recent(size=200))
    for number in range(count):
        sources.recent.add(ended(at := 1000.0 + number * spacing_s))
    assert snapshot(sources, now=at)["window"]["per_s"] == pytest.approx(per_s)


def test_many_pages_share_one_snapshot_that_is_made_anew_when_it_is_old(sources, end):
    clock = Clock()
    snapshots = Snapshots(sources, clock)
    first = snapshots.body()
    end(path="prefill")
    clock.now += FRESH_S * 0.9
    assert snapshots.body() is first
    clock.now += FRESH_S * 0.2
    assert json.loads(snapshots.body())["requests"]["total"] == 1
