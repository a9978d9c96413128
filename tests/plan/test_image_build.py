"""Settings to image: addresses that follow the content, a network that is told, settings that build none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from toolkit.errors import SettingsError
from toolkit.plan.image_build import (
    BuildPlace,
    cost_lines,
    kept_lines,
    key_of,
    made_lines,
    plan_image,
    with_component,
    with_place,
)
from toolkit.plan.network import plan_network
from toolkit.plan.node_software import node_software
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import ParallelClusterTarget

SHA = hashlib.sha256(b"payload").hexdigest()
NAME = "pd-3-14-2-nv580-126-16-cuda13-0-efa1-50-0"


@pytest.fixture
def target(deployment: Callable[..., Deployment]) -> Callable[..., ParallelClusterTarget]:
    def get(*assignments: str) -> ParallelClusterTarget:
        found = deployment("qwen3-32b-p5en", *assignments).target
        assert isinstance(found, ParallelClusterTarget)
        return found

    return get


def test_addresses_carry_the_digest_of_what_they_hold(target: Callable[..., ParallelClusterTarget]) -> None:
    plan = with_component(plan_image(target(), SHA), "script")
    folder = f"s3://pd-toolkit-123456789012-ap-south-1/images/{NAME}"
    assert plan.payload_url == f"{folder}/payload-{SHA[:16]}.tar.gz"
    assert plan.component_url == f"{folder}/component-{hashlib.sha256(b'script').hexdigest()[:16]}.sh"
    assert key_of(plan.payload_url) == f"images/{NAME}/payload-{SHA[:16]}.tar.gz"
    assert with_component(plan, "other").component_url != plan.component_url


def test_the_published_version_is_built_on_the_published_parent(
    target: Callable[..., ParallelClusterTarget],
) -> None:
    plan = plan_image(target(), SHA)
    assert plan.name == NAME
    assert plan.parent_image == node_software().parent_image
    assert (plan.instance_type, plan.root_volume_gb, plan.tags) == ("g6.4xlarge", 120, (("project", "pd"),))


def test_another_version_is_built_on_its_own_official_image_and_says_what_that_risks(
    target: Callable[..., ParallelClusterTarget],
) -> None:
    plan = plan_image(target("target.version=3.16.1"), SHA)
    assert plan.name == NAME.replace("3-14-2", "3-16-1")
    assert plan.parent_image == "aws-parallelcluster-3.16.1-ubuntu-2404-lts-hvm-x86_64-*"
    assert any("10-hold-kernel" in line for line in made_lines(plan))
    assert not any("10-hold-kernel" in line for line in made_lines(plan_image(target(), SHA)))


def test_the_build_runs_in_the_nodes_subnet_only_with_a_security_group(
    target: Callable[..., ParallelClusterTarget],
) -> None:
    assert plan_image(target(), SHA).subnet_id is None
    group = "sg-0123456789abcdef0"
    plan = plan_image(target(f"target.network.security_groups=[{group}]"), SHA)
    assert (plan.subnet_id, plan.security_group_ids) == ("subnet-0123456789abcdef1", (group,))
    placed = with_place(plan, "ami-0123456789abcdef0", BuildPlace())
    assert (placed.parent_image, placed.subnet_id) == ("ami-0123456789abcdef0", None)


@pytest.mark.parametrize(
    ("assignment", "key"),
    [
        ("target.image.ami=ami-0123456789abcdef0", "target.image.ami"),
        ("target.image.official=true", "target.image.official"),
        ("target.bucket=null", "target.bucket"),
    ],
)
def test_settings_that_build_none_are_refused(
    target: Callable[..., ParallelClusterTarget], assignment: str, key: str
) -> None:
    with pytest.raises(SettingsError, match=key) as told:
        plan_image(target(assignment), SHA)
    assert told.value.next_step


def test_a_network_that_is_made_for_the_build_is_told_with_its_cost(
    target: Callable[..., ParallelClusterTarget],
) -> None:
    settings = target()
    plan, network = plan_image(settings, SHA), plan_network(settings, "ap-south-1b")
    for lines in (made_lines, cost_lines, kept_lines):
        assert not any("etwork" in line for line in lines(plan))
    assert any(f"network stack {network.stack}: VPC" in line for line in made_lines(plan, network))
    assert any("NAT gateway: by the hour" in line for line in cost_lines(plan, network))
    assert any("--delete-network" in line for line in kept_lines(plan, network))
