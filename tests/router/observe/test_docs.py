"""docs/router-operations.md names what there is, and nothing else."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from toolkit.router.observe.accesslog import log_line
from toolkit.router.paths.choice import Reason

DOCS = (Path(__file__).parents[3] / "docs" / "router-operations.md").read_text()


def test_every_metric_is_listed_with_its_type_and_labels(metrics, parts, ended):
    parts.leases["renewed"] = 1
    metrics.engine_failures["decode", "http://d:1", "5xx"] = 1
    metrics.ended(
        ended(path="readback", reason="r", offered=True, kv_read_tokens=0, prefill_ms=1.0, ttft_ms=1.0)
    )
    metrics.ended(ended(status=429, outcome="refused"))
    exposed = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        if family.name.startswith("pd_router"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            exposed[name] = (family.type, labels)
    listed = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(
            r"^\| `(pd_router_\w+)` \| (\w+) \| ([^|]*)\|", DOCS, re.MULTILINE
        )
    }
    assert listed == exposed


def test_every_member_of_the_access_log_is_explained(ended):
    members = set(re.findall(r"(\w+)=", log_line(ended(prefill_ms=1.0), "T")))
    (table,) = re.findall(r"\| member \| what \|\n(.*?)\n\n", DOCS, re.DOTALL)
    first_cells = "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first_cells)) == members


def test_every_reason_of_a_path_is_explained():
    _, table = DOCS.split("\n## Reasons\n")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == {str(reason) for reason in Reason}
