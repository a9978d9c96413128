"""What a cluster will be: interfaces by version, capacity, what is missing, what it costs and what stays."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from toolkit.errors import SettingsError
from toolkit.plan.cluster import ClusterPlan, plan_cluster
from toolkit.plan.cluster_cost import cost_drivers, kept_after_delete
from toolkit.plan.cluster_kept import keep_head
from toolkit.plan.cluster_setting import setting_of
from toolkit.plan.instance_type import known_instance_types, nics
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import ParallelClusterTarget

Make = Callable[..., Deployment]
P5EN = "qwen3-32b-p5en"


def plan(deployment: Make, *assignments: str) -> ClusterPlan:
    target = deployment(P5EN, *assignments).target
    assert isinstance(target, ParallelClusterTarget)
    return plan_cluster(target)


def test_interfaces_of_the_published_version(deployment: Make) -> None:
    """Up to 3.14: 16 `efa` interfaces, each with an address."""
    gpu = plan(deployment, "target.version=3.14.2").gpu
    assert [(nic.card, nic.device_index, nic.kind) for nic in gpu.nics] == [
        (0, 0, "efa"),
        *((card, 1, "efa") for card in range(1, 16)),
    ]
    assert gpu.addresses_per_node == 16


def test_interfaces_of_the_newer_version(deployment: Make) -> None:
    """From 3.15 on: one ENA interface with the only address, and 16 `efa-only` ones."""
    gpu = plan(deployment, "target.version=3.16.1").gpu
    assert [(nic.card, nic.device_index, nic.kind) for nic in gpu.nics] == [
        (0, 0, "interface"),
        (0, 1, "efa-only"),
        *((card, 1, "efa-only") for card in range(1, 16)),
    ]
    assert gpu.addresses_per_node == 1


@pytest.mark.parametrize("version", ["3.14.2", "3.16.1"])
def test_sixteen_efa_devices_are_expected_on_a_node(deployment: Make, version: str) -> None:
    """The script that checks a node gets the number of devices that the interfaces make."""
    arguments = plan(deployment, f"target.version={version}").gpu.scripts[0].args
    assert arguments[arguments.index("--efa-devices") + 1] == "16"


@pytest.mark.parametrize("part", ["head", "gpu", "router"])
def test_the_script_that_is_sent_works_alone(part: str, deployment: Make, tmp_path: Path) -> None:
    """A node fetches this one file: what it reads must be in it."""
    script = getattr(plan(deployment), part).scripts[0]
    file = tmp_path / "fetched"
    file.write_text(script.content)
    done = subprocess.run(
        ["bash", str(file), *script.args, "--root", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, "this machine is no node of a cluster"
    assert all(line.startswith("pd-verify: ") for line in done.stderr.splitlines())
    assert "pd-verify: shared volume: expected /fsx mounted" in done.stderr


@pytest.mark.parametrize("version", ["3.14.2", "3.16.1"])
@pytest.mark.parametrize("name", ["p5en.48xlarge", "p6-b200.48xlarge", "p4d.24xlarge", "c6i.4xlarge"])
def test_without_efa_every_card_has_a_plain_interface(name: str, version: str) -> None:
    instance = known_instance_types()[name]
    made = nics(instance, efa=False, version=version)
    assert len(made) == instance.network_cards
    assert {nic.kind for nic in made} == {"interface"}


def test_every_missing_setting_is_named_at_once(deployment: Make) -> None:
    keys = ("network.head_subnet", "network.compute_subnet", "ssh.key_name", "bucket", "capacity.reservation")
    with pytest.raises(SettingsError) as caught:
        plan(deployment, *(f"target.{key}=null" for key in keys))
    for key in keys:
        assert f"target.{key}" in str(caught.value)
    assert "target.network.create" in str(caught.value)


def test_a_made_network_needs_no_subnets(deployment: Make) -> None:
    made = plan(
        deployment,
        *("target.network.head_subnet=null", "target.network.compute_subnet=null"),
        "target.network.create=true",
    )
    assert made.makes_network
    assert set(made.unknown) == {"SUBNET_OF_HEAD_NODE", "SUBNET_OF_COMPUTE_NODES", made.ami}


def test_the_check_script_is_named_after_its_content(deployment: Make) -> None:
    made = plan(deployment)
    (script,) = made.scripts
    assert script.content is not None
    assert script.content.startswith("#!")
    assert script.bucket == "pd-toolkit-123456789012-ap-south-1"
    assert plan(deployment).scripts == made.scripts


def test_costs_name_what_is_billed_though_unused(deployment: Make) -> None:
    drivers = {driver.what: driver.billed for driver in cost_drivers(plan(deployment))}
    gpu = next(what for what in drivers if what.startswith("gpu nodes"))
    assert gpu == "gpu nodes: 2 x p5en.48xlarge from reservation cr-0123456789abcdef0"
    assert drivers[gpu] == "billed by the hour while reserved, used or not"
    assert any("4800 GB" in what for what in drivers)
    assert any(what.startswith("head node: 1 x c6i.2xlarge") for what in drivers)
    assert "router nodes: 1 x c6i.4xlarge" in drivers
    assert not any("NAT" in what for what in drivers)
    assert not any("$" in text for pair in drivers.items() for text in pair)


def test_what_delete_keeps(deployment: Make) -> None:
    kept = "\n".join(kept_after_delete(plan(deployment)))
    for what in (
        *("FSx", "/aws/parallelcluster/pd-p5en-*", "pd-toolkit-123456789012-ap-south-1"),
        *("cr-0123456789abcdef0", "pd-3-14-2-nv580-126-16"),
    ):
        assert what in kept


@pytest.mark.parametrize(
    ("kind", "message", "setting"),
    [
        ("KeyPairValidator", "Key pair 'pd-key' does not exist.", "target.ssh.key_name"),
        (
            "CapacityReservationValidator",
            "Capacity reservation cr-0123456789abcdef0 has the wrong instance type.",
            "target.capacity.reservation",
        ),
        (
            "SubnetsValidator",
            "The subnet ID 'subnet-0123456789abcdef1' does not exist",
            "target.network.compute_subnet",
        ),
        (
            "EfaSecurityGroupValidator",
            "must allow all traffic in and out from itself",
            "target.network.security_groups",
        ),
        ("ConfigSchemaValidator", "[('SharedStorage', {0: {'MountDir': ['bad']}})]", "target.storage"),
        ("SomethingNew", "never seen", None),
    ],
)
def test_a_message_of_pcluster_names_its_setting(
    deployment: Make, kind: str, message: str, setting: str | None
) -> None:
    assert setting_of(plan(deployment), kind, message) == setting


def test_a_running_cluster_keeps_its_head_nodes_image_and_check_script(deployment: Make) -> None:
    """pcluster refuses an update that changes one of them; the queues take the new ones."""
    made = plan(
        deployment, 'target.scripts=[{"script": "s3://mine/x.sh"}]', "target.image.ami=ami-0aaaaaaaa1234567b"
    )
    old = "s3://pd-toolkit-123456789012-ap-south-1/pd-p5en/verify-0123456789ab.sh"
    sequence = [{"Script": old, "Args": ["head"]}, {"Script": "s3://mine/x.sh"}]
    actions = {"OnNodeConfigured": {"Sequence": sequence}}
    kept = keep_head(made, {"Image": {"CustomAmi": "ami-old"}, "HeadNode": {"CustomActions": actions}})
    assert [(script.url, script.args) for script in kept.head.scripts] == [
        (old, ("head",)),
        ("s3://mine/x.sh", ()),
    ]
    assert (kept.head.ami, kept.ami) == ("ami-old", "ami-0aaaaaaaa1234567b")
    assert kept.queues == made.queues
    for other in ({}, {"Image": None, "HeadNode": {}}, {"HeadNode": {"CustomActions": None}}):
        assert keep_head(made, other).head == replace(made.head, ami=None)
