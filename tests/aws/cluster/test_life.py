"""A cluster's whole life through the real pcluster, once a version: made, looked at, changed, deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolkit.plan.node_check import node_check
from toolkit.testing.aws import Standin
from toolkit.testing.serving import free_port
from toolkit.testing.sshd import SSHD, Sshd

pytestmark = [pytest.mark.aws, pytest.mark.slow]

NAME = "pd-p5en"
NEXT = ("toolkit cluster ssh -f", "toolkit job stage -f", "toolkit job submit -f")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """The head node's, as far as ssh can tell."""
    if not SSHD.exists():
        pytest.skip("needs sshd: apt-get install openssh-server")
    server = Sshd(tmp_path_factory.mktemp("sshd"), free_port())
    server.make_keys()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["3.14.2", "3.16.1"])
def made(request: pytest.FixtureRequest, fresh: Callable[..., Any], sshd: Sshd) -> Iterator[Any]:
    """A cluster of this version, and what its creation printed."""
    toolkit = fresh(
        request.param,
        create_seconds=3,
        head_address="127.0.0.1",
        host_keys=((sshd.folder / "host_key.pub").read_text().strip(),),
    )
    done = toolkit("create", "--yes", "-o", "json")
    yield toolkit, request.param, done
    toolkit.standin.reset()


def test_creation_tells_plan_costs_progress_and_what_next(made: Any) -> None:
    _, version, done = made
    told = done.stderr
    for words in (
        f"cluster {NAME} in ap-south-1, ParallelCluster {version}:",
        "gpu nodes: 2 x p5en.48xlarge from reservation cr-0123456789abcdef0: billed by the hour while "
        "reserved, used or not",
        "`toolkit cluster delete` will keep:",
        "pcluster WARNING EfaPlacementGroupValidator",
        "bucket pd-toolkit-123456789012-ap-south-1 was made",
        "CREATE_COMPLETE HeadNode (AWS::EC2::Instance)",
        "create complete",
        *NEXT,
    ):
        assert words in told
    # Our script is not there before the confirmation, and that is no warning.
    assert "UrlValidator" not in told
    shown = json.loads(done.stdout)
    assert (shown["state"], shown["version"], shown["fleet"]) == ("CREATE_COMPLETE", version, "RUNNING")


def test_the_check_script_that_nodes_run_is_in_the_bucket(made: Any) -> None:
    toolkit, _, _ = made
    listed = toolkit.client("s3").list_objects_v2(Bucket="pd-toolkit-123456789012-ap-south-1")["Contents"]
    (key,) = [each["Key"] for each in listed]
    assert key.startswith(f"{NAME}/verify-")
    sent = toolkit.client("s3").get_object(Bucket="pd-toolkit-123456789012-ap-south-1", Key=key)["Body"]
    assert sent.read().decode() == node_check()


def test_launch_template_has_16_efa_interfaces_the_reservation_and_no_placement_group(made: Any) -> None:
    toolkit, version, _ = made
    ec2 = toolkit.client("ec2")
    versions = ec2.describe_launch_template_versions(LaunchTemplateName=f"{NAME}-gpu-p5en")
    data = versions["LaunchTemplateVersions"][-1]["LaunchTemplateData"]
    interfaces = [
        (each["NetworkCardIndex"], each["DeviceIndex"], each.get("InterfaceType", "interface"))
        for each in data["NetworkInterfaces"]
    ]
    if version == "3.14.2":
        assert interfaces == [(0, 0, "efa"), *((card, 1, "efa") for card in range(1, 16))]
    else:
        efa_only = [(card, 1, "efa-only") for card in range(16)]
        assert sorted(interfaces) == sorted([(0, 0, "interface"), *efa_only])
    assert data["CapacityReservationSpecification"]["CapacityReservationTarget"] == {
        "CapacityReservationId": "cr-0123456789abcdef0"
    }
    assert not data.get("Placement", {}).get("GroupName")
    assert not any(each.get("AssociatePublicIpAddress") for each in data["NetworkInterfaces"])


def test_describe_shows_head_nodes_and_reservation(made: Any) -> None:
    toolkit, version, _ = made
    shown = json.loads(toolkit("describe", "-o", "json").stdout)
    assert (shown["name"], shown["version"], shown["unread"]) == (NAME, version, [])
    assert shown["address"] == "127.0.0.1"
    nodes = [(each["queue"], each["type"], each["state"]) for each in shown["instances"]]
    assert nodes == [
        ("", "c6i.2xlarge", "running"),
        *[("gpu", "p5en.48xlarge", "running")] * 2,
        ("router", "c6i.4xlarge", "running"),
    ]
    reserved = [each["reservation"] for each in shown["instances"] if each["queue"] == "gpu"]
    assert reserved == ["cr-0123456789abcdef0"] * 2
    assert (shown["reservation"]["total"], shown["reservation"]["available"]) == (2, 0)
    table = toolkit("describe")
    assert table.stdout.startswith("INSTANCE\tQUEUE\t")
    assert "2 of 2 p5en.48xlarge used" in table.stderr


def test_list_has_it(made: Any) -> None:
    toolkit, version, _ = made
    rows = json.loads(toolkit("list", "-o", "json").stdout)
    assert [row for row in rows if row["target"] == "parallelcluster"] == [
        {
            "name": NAME,
            "target": "parallelcluster",
            "state": "CREATE_COMPLETE",
            "version": version,
            "region": "ap-south-1",
            "nodes": None,
            "jobs": None,
        }
    ]


def test_creating_it_again_says_that_it_is_up(made: Any) -> None:
    toolkit, _, _ = made
    toolkit.standin.forget_calls()
    assert "is up, as these settings have it" in toolkit("create").stderr
    changed = toolkit.having("target.router.max_nodes=2")("create", "--yes", expect=2)
    assert "toolkit cluster update" in changed.stderr
    assert toolkit.standin.creating_calls() == ()


def test_diff_is_against_what_runs(made: Any) -> None:
    toolkit, _, _ = made
    same = toolkit("diff", "--exit-code")
    assert same.stdout == ""
    changed = toolkit.having("target.router.max_nodes=2")
    assert "-          MaxCount: 1\n+          MaxCount: 2\n" in changed("diff").stdout
    assert changed("diff", "--exit-code", expect=1).stdout.startswith(f"--- cluster {NAME}\n+++ settings\n")


def test_ssh_checks_the_host_key_and_passes_the_exit_code(made: Any, sshd: Sshd, tmp_path: Path) -> None:
    toolkit, _, _ = made
    address = sshd.address(tmp_path / "known")
    reached = toolkit.having(
        f"target.ssh.port={address.port}",
        f"target.ssh.user={address.user}",
        f"target.ssh.key_file={address.key_file}",
        f"target.ssh.known_hosts={tmp_path / 'known'}",
    )
    done = reached("ssh", "--", "sh", "-c", "echo 'a  b'; echo oops >&2; exit 7", expect=7)
    assert (done.stdout, done.stderr) == ("a  b\n", "oops\n")
    assert "127.0.0.1" in (tmp_path / "known").read_text()
    assert "no terminal" in reached("ssh", expect=2).stderr


def test_an_update_by_another_version_is_refused(made: Any) -> None:
    toolkit, version, _ = made
    other = "3.16.1" if version == "3.14.2" else "3.14.2"
    toolkit.standin.forget_calls()
    refused = toolkit.having(f"target.version={other}")("update", "--yes", expect=2)
    assert f"set target.version: {version}" in refused.stderr
    assert toolkit.standin.creating_calls() == ()


def test_update_and_delete(made: Any) -> None:
    """Last, since they end what the others look at."""
    toolkit, _, _ = made
    assert "nothing to change" in toolkit("update", "--yes").stderr
    toolkit.standin.forget_calls()
    refused = toolkit.having("target.head.instance_type=c6i.4xlarge")("update", "--yes", expect=2).stderr
    assert "HeadNode.InstanceType: c6i.2xlarge -> c6i.4xlarge" in refused
    assert toolkit.standin.creating_calls() == ()
    changed = toolkit.having("target.router.max_nodes=2")
    told = changed("update", "--yes").stderr
    assert "Scheduling.SlurmQueues[router].ComputeResources[c6i].MaxCount: 1 -> 2" in told
    assert "update complete" in told
    assert changed("diff").stdout == ""
    _deletes(changed)


def _deletes(toolkit: Any) -> None:
    standin: Standin = toolkit.standin
    standin.forget_calls()
    asked = toolkit("delete", expect=2)
    assert "--yes" in asked.stderr
    foreign = toolkit.having("target.capacity.reservation=cr-0aaaaaaaaaaaaaaa1")
    told = foreign("delete", "--yes", expect=2).stderr
    assert "target.capacity.reservation: the cluster has cr-0123456789abcdef0" in told
    assert "its tags: " in told
    assert "--not-mine" in told
    assert standin.creating_calls() == ()
    done = toolkit("delete", "--yes").stderr
    assert "goes: i-" in done
    assert f"no instance of cluster {NAME} is left" in done
    for stays, removal in (
        ("file system fs-", "aws fsx delete-file-system"),
        (f"log group /aws/parallelcluster/{NAME}-", "aws logs delete-log-group"),
        ("image pd-3-1", "toolkit image delete"),
        ("bucket pd-toolkit-123456789012-ap-south-1", "aws s3 rb"),
        ("capacity reservation cr-0123456789abcdef0", "aws ec2 cancel-capacity-reservation"),
    ):
        assert any(f"stays: {stays}" in line and removal in line for line in done.splitlines())
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    assert toolkit.client("ec2").describe_instances(Filters=alive)["Reservations"] == []
    assert "is not there" in toolkit("delete", "--yes").stderr
    assert json.loads(toolkit("describe", "-o", "json").stdout)["state"] == "absent"
