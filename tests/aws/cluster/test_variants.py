"""Clusters other than the published one: an existing file system, a capacity block, a network made here."""

from __future__ import annotations

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


def test_a_network_is_made_used_and_removed(fresh: Callable[..., Any]) -> None:
    toolkit = fresh("3.16.1").having(
        "target.network.create=true",
        "target.network.head_subnet=null",
        "target.network.compute_subnet=null",
    )
    checked = toolkit("create", "--dry-run", "--check")
    assert "a new VPC in ap-south-1b" in checked.stderr
    assert "SUBNET_OF_HEAD_NODE" in checked.stdout
    assert toolkit.standin.creating_calls() == ()
    toolkit("create", "--yes")
    assert toolkit("diff").stdout == ""
    kept = toolkit("delete", "--yes").stderr
    assert "stays: network stack pd-p5en-network" in kept
    toolkit("delete", "--yes", "--delete-network")
    assert toolkit.client("cloudformation").describe_stacks()["Stacks"] == []
    vpcs = toolkit.client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["false"]}])["Vpcs"]
    assert [each["VpcId"] for each in vpcs] == [toolkit.standin.ids["vpc"]]
