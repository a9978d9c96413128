from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from toolkit import __version__
from toolkit.router import app


def samples(metrics):
    """Every sample as Prometheus reads it: {(name, (label, value), ...): number}."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_a_finished_request_is_counted_under_all_its_labels(metrics, ended):
    metrics.ended(
        ended(
            path="readback",
            reason="history-held",
            identity="explicit",
            status=200,
            stream=True,
            offered=True,
            kv_read_tokens=3936,
            prompt_tokens=4010,
            prefill_ms=367.0,
            ttft_ms=413.0,
            queue_ms=2.0,
            retries=1,
        )
    )
    seen = samples(metrics)
    text = metrics.text().decode()
    # As it was before there were reasons: dashboards ask for this.
    assert 'pd_router_requests_total{outcome="ok",path="readback",status="200",stream="true"} 1.0' in text
    path = ("path", "readback")
    assert seen["pd_router_path_total", path, ("reason", "history-held")] == 1
    assert seen["pd_router_readback_total", ("outcome", "hit")] == 1
    assert seen["pd_router_kv_read_tokens_total",] == 3936
    assert seen["pd_router_prompt_tokens_total",] == 4010
    assert seen["pd_router_retries_total",] == 1
    assert seen["pd_router_anonymous_requests_total",] == 0
    for name, seconds, below, above in (
        ("prefill", 0.367, "0.2", "0.4"),
        ("ttft", 0.413, "0.4", "0.8"),
    ):
        assert seen[f"pd_router_{name}_seconds_sum", path] == pytest.approx(seconds)
        assert seen[f"pd_router_{name}_seconds_count", path] == 1
        assert seen[f"pd_router_{name}_seconds_bucket", ("le", below), path] == 0
        assert seen[f"pd_router_{name}_seconds_bucket", ("le", above), path] == 1
        assert seen[f"pd_router_{name}_seconds_bucket", ("le", "+Inf"), path] == 1
    assert seen["pd_router_queue_seconds_bucket", ("le", "0.001")] == 0
    assert seen["pd_router_queue_seconds_bucket", ("le", "0.005")] == 1


def test_a_value_on_a_bound_belongs_to_its_bucket(metrics, ended):
    metrics.ended(ended(path="prefill", prefill_ms=400.0))
    metrics.ended(ended(path="prefill", prefill_ms=1e9))
    seen = samples(metrics)
    path = ("path", "prefill")
    assert seen["pd_router_prefill_seconds_bucket", ("le", "0.4"), path] == 1
    assert seen["pd_router_prefill_seconds_bucket", ("le", "120.0"), path] == 1
    assert seen["pd_router_prefill_seconds_bucket", ("le", "+Inf"), path] == 2


def test_a_request_that_took_no_path_is_no_turn(metrics, ended):
    metrics.ended(ended(status=401, outcome="refused"))
    metrics.ended(ended(outcome="client-gone"))
    seen = samples(metrics)
    none = ("path", "none")
    assert (
        seen["pd_router_requests_total", ("outcome", "refused"), none, ("status", "401"), ("stream", "false")]
        == 1
    )
    assert (
        seen[
            "pd_router_requests_total",
            ("outcome", "client-gone"),
            none,
            ("status", "none"),
            ("stream", "false"),
        ]
        == 1
    )
    assert seen["pd_router_refusals_total", ("status", "401")] == 1
    assert seen["pd_router_client_gone_total",] == 1
    assert seen["pd_router_readback_total", ("outcome", "none")] == 0
    assert seen["pd_router_anonymous_requests_total",] == 0


def test_readbacks_are_told_apart_and_a_decline_has_a_reason(metrics, ended):
    offered = {"path": "readback", "offered": True}
    metrics.ended(ended(**offered, kv_read_tokens=0, declined="another history"))
    metrics.ended(ended(**offered, kv_read_tokens=0))
    metrics.ended(ended(**offered))
    metrics.ended(ended(path="prefill"))
    seen = samples(metrics)
    counts = {
        outcome: seen["pd_router_readback_total", ("outcome", outcome)]
        for outcome in ("hit", "declined", "unknown", "none")
    }
    assert counts == {"hit": 0, "declined": 2, "unknown": 1, "none": 1}
    assert seen["pd_router_readback_declined_total", ("reason", "another history")] == 1
    assert seen["pd_router_readback_declined_total", ("reason", "untold")] == 1
    assert seen["pd_router_anonymous_requests_total",] == 4


@pytest.mark.parametrize(
    ("sent", "status", "kind"),
    [(False, None, "connect"), (True, None, "broken"), (True, 503, "5xx"), (True, 404, "4xx")],
)
def test_an_engines_failure_has_a_kind(metrics, leg, sent, status, kind):
    failed = leg("decode", "http://d:1")
    metrics.engine_failed(SimpleNamespace(leg=failed, sent=sent, status=status))
    seen = samples(metrics)
    role, url = ("role", "decode"), ("url", "http://d:1")
    assert seen["pd_router_upstream_errors_total", ("kind", kind), role, url] == 1
    assert seen["pd_router_engine_failures_total", role, url] == 1
    assert metrics.failures_of("decode", "http://d:1") == 1
    assert metrics.failures_of("prefill", "http://d:1") == 0


def test_live_parts_are_read_at_each_scrape(metrics, parts, leg):
    seen = samples(metrics)
    assert seen["pd_router_in_flight",] == 5
    assert seen["pd_router_queue_running",] == 2
    assert seen["pd_router_queue_waiting",] == 1
    assert seen["pd_router_queue_running_limit",] == 8
    assert seen["pd_router_queue_waiting_limit",] == 16
    assert seen["pd_router_conversations",] == 3
    assert seen["pd_router_map_bytes",] == 900
    assert seen["pd_router_map_conversations_limit",] == 100
    assert seen["pd_router_map_bytes_limit",] == 4096
    assert seen["pd_router_handles_total", ("event", "saved")] == 4
    # Every event is there before it happens for the first time, so that its rate is right.
    assert seen["pd_router_handles_total", ("event", "evicted")] == 0
    parts.legs[:] = [
        leg("decode", "http://new:1", healthy=False, draining=True, in_flight=4, pending_tokens=70)
    ]
    parts.in_flight = 0
    parts.conversations.events["dropped-by-lease"] += 1
    seen = samples(metrics)
    new = (("role", "decode"), ("url", "http://new:1"))
    assert [
        seen[f"pd_router_leg_{name}", *new] for name in ("healthy", "draining", "in_flight", "pending_tokens")
    ] == [0, 1, 4, 70]
    assert not any(("url", "http://p:1") in key for key in seen)
    assert seen["pd_router_in_flight",] == 0
    assert seen["pd_router_handles_total", ("event", "dropped-by-lease")] == 1


def test_leases_the_build_and_the_process_are_told(metrics, parts):
    parts.leases["renewed"] += 4
    seen = samples(metrics)
    assert seen["pd_router_leases_total", ("event", "renewed")] == 4
    form = "interpreted" if app.__file__.endswith(".py") else "compiled"
    assert seen["pd_router_build_info", ("form", form), ("version", __version__)] == 1
    assert seen["process_resident_memory_bytes",] > 0


def test_markup_and_line_breaks_in_labels_do_not_break_the_exposition(metrics, ended):
    reason = 'a "reason"\nwith \\ and ü'
    metrics.ended(ended(path="prefill", reason=reason))
    assert samples(metrics)["pd_router_path_total", ("path", "prefill"), ("reason", reason)] == 1
