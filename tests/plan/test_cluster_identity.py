"""Whose a cluster is: what of its stored configuration shows that another target made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from toolkit.plan.cluster import plan_cluster
from toolkit.plan.cluster_identity import differences
from toolkit.render.cluster import render_cluster
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import ParallelClusterTarget

Make = Callable[..., Deployment]
NAME = "qwen3-32b-p5en"


def target(deployment: Make, *settings: str, name: str = NAME) -> ParallelClusterTarget:
    found = deployment(name, *settings).target
    assert isinstance(found, ParallelClusterTarget)
    return found


def stored(deployment: Make, *settings: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(render_cluster(plan_cluster(target(deployment, *settings))))
    return document


@pytest.mark.parametrize("other", [NAME, "glm-5-fp8-p5en"])
def test_deployments_that_share_a_cluster_may_both_delete_it(deployment: Make, other: str) -> None:
    assert differences(target(deployment, name=other), stored(deployment)) == ()


@pytest.mark.parametrize(
    "setting",
    ["target.router.max_nodes=2", "target.gpu.volume_gb=300", "target.log_retention_days=7"],
)
def test_what_an_update_may_change_does_not_count(deployment: Make, setting: str) -> None:
    assert differences(target(deployment, setting), stored(deployment)) == ()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (("target.network.head_subnet=subnet-0aaaaaaaaaaaaaaaa",), "target.network.head_subnet"),
        (("target.network.compute_subnet=subnet-0aaaaaaaaaaaaaaaa",), "target.network.compute_subnet"),
        (("target.capacity.reservation=cr-0aaaaaaaaaaaaaaaa",), "target.capacity.reservation"),
        (("target.capacity.kind=spot", "target.capacity.reservation=null"), "target.capacity.reservation"),
        (('target.tags={"team": "others"}',), "target.tags"),
    ],
)
def test_another_target_is_known_by_its_part_of_the_account(
    deployment: Make, settings: tuple[str, ...], key: str
) -> None:
    for mine, cluster in (((), settings), (settings, ())):
        found = differences(target(deployment, *mine), stored(deployment, *cluster))
        assert [line.partition(":")[0] for line in found] == [key]


def test_a_network_of_the_toolkits_own_is_compared_by_its_subnets(deployment: Make) -> None:
    made = target(
        deployment,
        "target.network.create=true",
        "target.network.head_subnet=null",
        "target.network.compute_subnet=null",
    )
    cluster = stored(deployment)
    given = target(deployment).network
    assert differences(made, cluster, (str(given.head_subnet), str(given.compute_subnet))) == ()
    assert len(differences(made, cluster, ("subnet-0aaaaaaaaaaaaaaaa", "subnet-0bbbbbbbbbbbbbbbb"))) == 2


def test_what_the_settings_leave_open_is_no_difference(deployment: Make) -> None:
    open_ = target(
        deployment,
        "target.network.head_subnet=null",
        "target.network.compute_subnet=null",
        "target.capacity.reservation=null",
    )
    assert differences(open_, stored(deployment)) == ()
