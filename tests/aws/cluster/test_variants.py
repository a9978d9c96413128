"""Clusters other than the published one: an existing file system, a capacity block, a network made here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.aws, pytest.mark.slow]


@pytest.mark.parametrize("version", ["3.14.2", "3.16.1"])
def test_existing_file_system_and_capacity_block_pass_every_check(
    fresh: Callable[..., Any], version: str
) -> None:
    toolkit = fresh(version)
    ids = toolkit.standin.ids
    done = toolkit.having(
        f"target.storage.file_system={ids['filesystem']}",
        "target.capacity.kind=capacity-block",
        f"target.capacity.reservation={ids['reservation_block']}",
    )("create", "--dry-run", "--check")
    document = yaml.safe_load(done.stdout)
    assert document["Scheduling"]["SlurmQueues"][0]["CapacityType"] == "CAPACITY_BLOCK"
    assert document["SharedStorage"][0]["FsxLustreSettings"] == {"FileSystemId": ids["filesystem"]}
    assert "paid in advance, used or not" in done.stderr
    assert f"file system {ids['filesystem']}, which was there before" in done.stderr
    assert toolkit.standin.creating_calls() == ()


OWN_NETWORK = (
    "target.network.create=true",
    "target.network.head_subnet=null",
    "target.network.compute_subnet=null",
)


def test_a_network_is_made_used_and_removed(fresh: Callable[..., Any]) -> None:
    """Its cluster's new file system outlives the cluster, and holds the network until it is deleted."""
    toolkit = fresh("3.16.1").having(*OWN_NETWORK)
    checked = toolkit("create", "--dry-run", "--check")
    assert "a new VPC in ap-south-1b" in checked.stderr
    assert "SUBNET_OF_HEAD_NODE" in checked.stdout
    assert toolkit.standin.creating_calls() == ()
    toolkit("create", "--yes")
    assert toolkit("diff").stdout == ""
    assert json.loads(toolkit("describe", "-o", "json").stdout)["network"]["stack"] == "pd-p5en-network"

    told = toolkit("delete", "--yes", "--delete-network").stderr
    (volume,) = _file_systems(toolkit)
    assert f"network pd-p5en-network stays, since this will still be in it: file system {volume}" in told
    assert "no instance of cluster pd-p5en is left" in told
    for stays, removal in (
        (f"file system {volume}", f"--file-system-id {volume}"),
        ("security group sg-", "aws ec2 delete-security-group"),
        ("network stack pd-p5en-network", "--delete-network"),
    ):
        last = told[told.index("no instance of cluster") :].splitlines()
        assert any(f"stays: {stays}" in line and removal in line for line in last)
    assert "NAT gateway is billed" in toolkit("describe").stderr

    held = toolkit("delete", "--yes", "--delete-network", expect=1).stderr
    assert f"file system {volume}" in held
    toolkit.client("fsx").delete_file_system(FileSystemId=volume)
    asked = toolkit("delete", "--delete-network", expect=2).stderr
    assert "This will delete security group sg-" in asked
    assert "and network pd-p5en-network" in asked
    assert "nothing was removed" not in told + held + asked
    gone = toolkit("delete", "--yes", "--delete-network").stderr
    assert "stays: security group" not in gone[gone.index("network pd-p5en-network: deleting") :]
    assert toolkit.client("cloudformation").describe_stacks()["Stacks"] == []
    vpcs = toolkit.client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["false"]}])["Vpcs"]
    assert [each["VpcId"] for each in vpcs] == [toolkit.standin.ids["vpc"]]


def test_what_can_never_be_in_a_new_network_is_refused_before_it_is_made(fresh: Callable[..., Any]) -> None:
    toolkit = fresh("3.14.2").having(*OWN_NETWORK)
    ids = toolkit.standin.ids
    for setting in (
        f"target.storage.file_system={ids['filesystem']}",
        f"target.network.security_groups=[{ids['sg_efa']}]",
    ):
        told = toolkit.having(setting)("create", "--yes", expect=2).stderr
        assert setting.partition("=")[0] in told
        assert "nothing was made or changed" in told
    assert toolkit.standin.creating_calls() == ()


def test_a_refusal_after_the_network_was_made_says_so_and_how_to_remove_it(fresh: Callable[..., Any]) -> None:
    """Only pcluster knows this mistake, and it looks only when there are subnets."""
    toolkit = fresh("3.14.2").having(
        *OWN_NETWORK,
        'target.overrides={"AdditionalPackages": {"IntelSoftware": {"IntelHpcPlatform": true}}}',
    )
    told = toolkit("create", "--yes", expect=2).stderr
    assert "pcluster 3.14.2 refuses the configuration" in told
    assert "network stack pd-p5en-network with its NAT gateway, billed" in told
    assert "--delete-network` removes the network" in told
    assert "nothing was made" not in told
    assert "its NAT gateway is billed" in toolkit("describe").stderr
    toolkit("delete", "--yes", "--delete-network")
    assert toolkit.client("cloudformation").describe_stacks()["Stacks"] == []


def _file_systems(toolkit: Any) -> list[str]:
    """Of the cluster."""
    tag = {"Key": "parallelcluster:cluster-name", "Value": "pd-p5en"}
    systems = toolkit.client("fsx").describe_file_systems()["FileSystems"]
    return [each["FileSystemId"] for each in systems if tag in each.get("Tags", ())]
