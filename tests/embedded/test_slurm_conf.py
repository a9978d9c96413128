"""Configuration files, whole, against golden files; `pytest --golden` writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from toolkit.embedded.slurm_conf import MachineFacts, configuration_files, slurm_conf
from toolkit.plan.embedded import EmbeddedPlan

GOLDEN = Path(__file__).parent / "golden"
FACTS = MachineFacts(hostname="head", has_freezer=True)


@pytest.mark.parametrize("name", ["slurm.conf", "gres.conf", "cgroup.conf", "hosts", "plan.json"])
def test_file_is_as_golden(
    name: str, make_plan: Callable[..., EmbeddedPlan], request: pytest.FixtureRequest
) -> None:
    text = configuration_files(make_plan(Path("/srv/cluster")), FACTS)[name]
    if request.config.getoption("--golden"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_without_a_freezer_processes_are_tracked_by_parentage(make_plan: Callable[..., EmbeddedPlan]) -> None:
    text = slurm_conf(make_plan(Path("/srv/cluster")), replace(FACTS, has_freezer=False))
    assert "ProctrackType=proctrack/linuxproc\n" in text


def test_model_and_engine_do_not_make_another_cluster(make_plan: Callable[..., EmbeddedPlan]) -> None:
    plan = make_plan(Path("/srv/cluster"))
    other = replace(plan, model="Qwen/Qwen3-0.6B", engine_env=Path("/elsewhere"))
    assert configuration_files(other, FACTS) == configuration_files(plan, FACTS)
    fewer = replace(plan, nodes=plan.nodes[1:])
    assert configuration_files(fewer, FACTS)["plan.json"] != configuration_files(plan, FACTS)["plan.json"]
