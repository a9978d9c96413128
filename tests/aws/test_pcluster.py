"""The real pcluster, both versions, against simulated AWS: each call, and what it leaves in AWS."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import botocore.session
import pytest

from toolkit.errors import ToolkitError
from toolkit.remote.pcluster import Pcluster
from toolkit.remote.pcluster_answer import Cluster
from toolkit.remote.pcluster_error import PclusterRefused
from toolkit.remote.pcluster_failure import Failure, classify, relevant_streams
from toolkit.testing.aws import Standin

pytestmark = [pytest.mark.aws, pytest.mark.slow]

GetPcluster = Callable[..., Pcluster]
GetConfig = Callable[..., str]


def ec2(standin: Standin) -> Any:
    return botocore.session.get_session().create_client(
        "ec2",
        region_name="ap-south-1",
        endpoint_url=standin.url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def instances(standin: Standin, node_type: str) -> list[dict[str, Any]]:
    filters = [
        {"Name": "tag:parallelcluster:node-type", "Values": [node_type]},
        {"Name": "instance-state-name", "Values": ["running"]},
    ]
    found = ec2(standin).describe_instances(Filters=filters)["Reservations"]
    return [each for reservation in found for each in reservation["Instances"]]


def wait(pcluster: Pcluster, status: str) -> Cluster:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        cluster = pcluster.describe_cluster("pd")
        assert cluster
        if cluster.stack_status == status:
            return cluster
    raise AssertionError(f"the stack did not become {status}")


@pytest.mark.parametrize(
    ("version", "interfaces"),
    [("3.14.2", ["efa"] * 16), ("3.16.1", ["interface"] + ["efa-only"] * 16)],
)
def test_life_of_a_cluster(
    standin: Standin,
    pcluster: GetPcluster,
    cluster_config: GetConfig,
    version: str,
    interfaces: list[str],
) -> None:
    cli, config = pcluster(version), cluster_config(nodes=1)
    tried = cli.create_cluster("pd", config, dry_run=True)
    assert (tried.accepted, [each.level for each in tried.validation]) == (True, ["WARNING"])
    assert standin.calls()
    assert standin.creating_calls() == ()

    standin.script(create_seconds=3)
    assert cli.create_cluster("pd", config).accepted
    assert "cloudformation.CreateStack" in map(str, standin.creating_calls())
    wait(cli, "CREATE_COMPLETE")
    assert [(each.name, each.version) for each in cli.list_clusters()] == [("pd", version)]
    fleet = cli.describe_compute_fleet("pd")
    assert fleet
    assert fleet.status == "RUNNING"
    nodes = cli.describe_cluster_instances("pd")
    assert sorted((each.node_type, each.queue) for each in nodes) == [
        ("ComputeNode", "gpu"),
        ("HeadNode", ""),
    ]
    events = cli.get_cluster_stack_events("pd")
    states = [event.status for event in events if event.resource == "pd"]
    assert states == ["CREATE_IN_PROGRESS", "CREATE_COMPLETE"]
    assert events[-1].time > events[0].time
    streams = [stream.name for stream in cli.list_cluster_log_streams("pd")]
    manager = next(name for name in streams if name.endswith(".clustermgtd"))
    assert "ClusterManager Startup" in cli.get_cluster_log_events("pd", manager)[0].message

    wider = cluster_config(nodes=2)
    changed = cli.update_cluster("pd", wider, dry_run=True)
    assert [(each.current, each.requested) for each in changed.change_set] == [("1", "2")] * 2
    assert not cli.update_cluster("pd", config).accepted
    other = pcluster("3.16.1" if version == "3.14.2" else "3.14.2")
    with pytest.raises(PclusterRefused, match="only by the version that created it"):
        other.update_cluster("pd", wider)
    assert cli.update_cluster("pd", wider).accepted
    wait(cli, "UPDATE_COMPLETE")
    check_nodes(standin, interfaces)

    standin.script(delete_seconds=1)
    deleting = cli.delete_cluster("pd")
    assert deleting
    assert deleting.status == "DELETE_IN_PROGRESS"
    time.sleep(1)
    assert cli.describe_cluster("pd") is None
    assert instances(standin, "Compute") == instances(standin, "HeadNode") == []


def check_nodes(standin: Standin, interfaces: list[str]) -> None:
    client = ec2(standin)
    versions = client.describe_launch_template_versions(LaunchTemplateName="pd-gpu-p5en")
    template = versions["LaunchTemplateVersions"][-1]["LaunchTemplateData"]
    nics = template["NetworkInterfaces"]
    assert sorted(nic.get("InterfaceType", "interface") for nic in nics) == sorted(interfaces)
    assert {int(nic.get("NetworkCardIndex", 0)) for nic in nics} == set(range(16))
    target = template["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": standin.ids["reservation"]}
    assert not template.get("Placement", {}).get("GroupName")
    nodes = instances(standin, "Compute")
    assert len(nodes) == 2
    for node in nodes:
        assert node["CapacityReservationId"] == standin.ids["reservation"]
        cards = [each["Attachment"]["NetworkCardIndex"] for each in node["NetworkInterfaces"]]
        assert (len(cards), set(cards)) == (len(interfaces), set(range(16)))
    reservation = client.describe_capacity_reservations(CapacityReservationIds=[standin.ids["reservation"]])
    assert reservation["CapacityReservations"][0]["AvailableInstanceCount"] == 0
    head = instances(standin, "HeadNode")[0]["InstanceId"]
    console = client.get_console_output(InstanceId=head)["Output"]
    assert "-----BEGIN SSH HOST KEY FINGERPRINTS-----" in console
    assert "(ED25519)" in console


def read_failure(cli: Pcluster) -> Failure:
    cluster = cli.describe_cluster("pd")
    assert cluster
    assert cluster.status == "CREATE_FAILED"
    streams = relevant_streams(cli.list_cluster_log_streams("pd"))
    logs = {name: [each.message for each in cli.get_cluster_log_events("pd", name)] for name in streams}
    return classify(cluster, cli.get_cluster_stack_events("pd"), logs)


@pytest.mark.parametrize(
    ("version", "outcome", "rollback", "kind", "proof"),
    [
        ("3.14.2", "bootstrap-script", True, "bootstrap-script", "bootstrap/configure.sh, return code: 3"),
        ("3.16.1", "insufficient-capacity", False, "capacity", "(InsufficientInstanceCapacity)"),
        ("3.16.1", "denied", True, "permission", "iam:CreateRole"),
    ],
)
def test_failed_creation_is_classified(
    standin: Standin,
    pcluster: GetPcluster,
    cluster_config: GetConfig,
    version: str,
    outcome: str,
    rollback: bool,
    kind: str,
    proof: str,
) -> None:
    standin.script(outcome=outcome)
    cli = pcluster(version)
    cli.create_cluster("pd", cluster_config(), rollback_on_failure=rollback)
    failure = read_failure(cli)
    assert failure.kind == kind
    assert any(proof in line for line in failure.evidence)
    assert ("--no-rollback" in failure.look_closer) is rollback


@pytest.mark.parametrize("version", ["3.14.2", "3.16.1"])
def test_a_refused_configuration_makes_nothing(
    standin: Standin, pcluster: GetPcluster, cluster_config: GetConfig, version: str
) -> None:
    config = cluster_config(reservation=standin.ids["reservation_wrong_type"])
    with pytest.raises(PclusterRefused) as refused:
        pcluster(version).create_cluster("pd", config)
    # 3.14.2 adds an error of its placement group validator, which is wrong.
    errors = [each for each in refused.value.outcome.validation if each.level == "ERROR"]
    told = next(each for each in errors if each.type == "CapacityReservationValidator")
    assert standin.ids["reservation_wrong_type"] in told.message
    assert f"ERROR CapacityReservationValidator: {told.message}" in refused.value.what
    assert standin.creating_calls() == ()


def test_an_unknown_key_is_refused_in_pclusters_words(
    pcluster: GetPcluster, cluster_config: GetConfig
) -> None:
    config = cluster_config().replace("Efa:", "Efs:")
    with pytest.raises(PclusterRefused, match="Unknown field") as refused:
        pcluster().create_cluster("pd", config, dry_run=True)
    assert refused.value.outcome.validation[0].type == "ConfigSchemaValidator"


def test_what_does_not_exist_is_none(standin: Standin, pcluster: GetPcluster) -> None:
    cli = pcluster("3.16.1")
    assert cli.describe_cluster("pd") is None
    assert cli.delete_cluster("pd") is None
    assert cli.describe_image("pd-image") is None
    assert cli.delete_image("pd-image") is None
    assert cli.list_cluster_log_streams("pd") == cli.get_cluster_log_events("pd", "x.i-1.y") == ()
    assert standin.creating_calls() == ()


@pytest.mark.parametrize("version", ["3.14.2", "3.16.1"])
def test_life_of_an_image(pcluster: GetPcluster, image_config: GetConfig, version: str) -> None:
    cli = pcluster(version)
    assert cli.build_image("pd-node", image_config()).accepted
    image = cli.describe_image("pd-node")
    assert image
    assert (image.status, image.ami_state) == ("BUILD_COMPLETE", "AVAILABLE")
    assert image.tags["parallelcluster:version"] == version
    assert image.tags["parallelcluster:nvidia_version"] == "580.126.16"
    assert cli.delete_image("pd-node")
    assert cli.describe_image("pd-node") is None


def test_a_build_that_runs_and_one_that_fails(
    standin: Standin, pcluster: GetPcluster, image_config: GetConfig
) -> None:
    cli = pcluster()
    standin.script(image_seconds=3600)
    cli.build_image("pd-node", image_config())
    image = cli.describe_image("pd-node")
    assert image
    assert (image.status, image.builder_status) == ("BUILD_IN_PROGRESS", "BUILDING")
    standin.reset()
    standin.script(image_outcome="component-failed")
    cli.build_image("pd-node", image_config())
    image = cli.describe_image("pd-node")
    assert image
    assert image.status == "BUILD_FAILED"
    assert [each.image_id for each in cli.list_images()] == ["pd-node"]
    streams = cli.list_image_log_streams("pd-node")
    lines = [each.message for each in cli.get_image_log_events("pd-node", streams[0].name)]
    assert any("Step 'Script' failed" in line for line in lines)


@pytest.mark.parametrize("version", ["3.14.2", "3.16.1"])
def test_official_images(standin: Standin, pcluster: GetPcluster, version: str) -> None:
    images = pcluster(version).list_official_images(os_name="ubuntu2404")
    key = "official_ami" if version == "3.14.2" else "official_ami_3_16_1"
    assert [(each.ami_id, each.version) for each in images] == [(standin.ids[key], version)]


def test_missing_credentials_are_explained(standin: Standin, pcluster_env: Callable[[str], Any]) -> None:
    environment = {
        name: value
        for name, value in standin.environment.items()
        if name not in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    }
    with pytest.raises(ToolkitError, match="No AWS credentials were found") as error:
        Pcluster(pcluster_env("3.14.2"), "ap-south-1", environment=environment).list_clusters()
    assert "aws sts get-caller-identity" in error.value.next_step
