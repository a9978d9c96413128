"""The stand-in itself: what moves with time, and what it says that it was asked."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import botocore.session
import pytest

from toolkit.testing.aws import Standin
from toolkit.testing.aws.calls import Call
from toolkit.testing.aws.operation import Request, is_dry_run, name_operation
from toolkit.testing.aws.scenario import OUTCOMES, Scenario
from toolkit.testing.aws.stories import Setting, tell
from toolkit.testing.aws.timeline import HEAD_NODE, HEAD_WAIT, Fault, Resource, creation, deletion

STACK = Resource("pd", "AWS::CloudFormation::Stack", "arn")
RESOURCES = [
    Resource("RoleHeadNode", "AWS::IAM::Role", "r"),
    Resource(HEAD_NODE, "AWS::EC2::Instance", "i-1"),
    Resource(f"{HEAD_WAIT}Handle1", "AWS::CloudFormation::WaitConditionHandle", "h"),
    Resource(f"{HEAD_WAIT}1", "AWS::CloudFormation::WaitCondition", "w"),
]
SETTING = Setting(
    "i-1", "c6i.2xlarge", "ap-south-1b", "s3://b/h.sh", "s3://b/n.sh", "gpu-st-a-1", "p5en.48xlarge", "1"
)


def ec2(standin: Standin) -> Any:
    return aws_client(standin, "ec2")


def aws_client(standin: Standin, service: str) -> Any:
    return botocore.session.get_session().create_client(
        service,
        region_name="ap-south-1",
        endpoint_url=standin.url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def test_a_creation_ends_complete_and_shows_every_resource() -> None:
    timeline = creation(STACK, RESOURCES, None, rollback=True)
    assert [timeline.status(clock) for clock in (0.0, 0.5, 1.0)] == [
        "CREATE_IN_PROGRESS",
        "CREATE_IN_PROGRESS",
        "CREATE_COMPLETE",
    ]
    assert len(timeline.until(0.0)) == 1
    done = {each.resource.name for each in timeline.until(1.0) if each.status == "CREATE_COMPLETE"}
    assert done == {"pd", *(each.name for each in RESOURCES)}


@pytest.mark.parametrize(("rollback", "end"), [(True, "ROLLBACK_COMPLETE"), (False, "CREATE_FAILED")])
def test_a_fault_ends_the_stack_as_it_was_asked_to(rollback: bool, end: str) -> None:
    timeline = creation(STACK, RESOURCES, Fault(HEAD_WAIT, "why"), rollback=rollback)
    assert timeline.status(1.0) == end
    failed = [each for each in timeline.moments if each.status == "CREATE_FAILED" and each.resource != STACK]
    assert [(each.resource.name, each.reason) for each in failed] == [(f"{HEAD_WAIT}1", "why")]
    removed = [each for each in timeline.moments if each.status == "DELETE_COMPLETE"]
    assert bool(removed) is rollback


def test_an_early_fault_cancels_what_was_under_way_and_begins_nothing_more() -> None:
    timeline = creation(STACK, RESOURCES, Fault("AWS::IAM::Role", "denied"), rollback=False)
    assert not any(each.resource.name == HEAD_NODE for each in timeline.moments)


def test_a_deletion_removes_everything() -> None:
    timeline = deletion(STACK, RESOURCES)
    assert timeline.status(0.99) == "DELETE_IN_PROGRESS"
    gone = {each.resource.name for each in timeline.until(1.0) if each.status == "DELETE_COMPLETE"}
    assert gone == {"pd", *(each.name for each in RESOURCES)}


@pytest.mark.parametrize("outcome", [each for each in OUTCOMES if each != "complete"])
def test_every_outcome_but_one_has_a_fault(outcome: str) -> None:
    assert tell(outcome, SETTING).fault


def test_an_outcome_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="none of complete, bootstrap-script"):
        Scenario(outcome="meteor")


def request(
    service: str, method: str = "POST", path: str = "/", query: str = "", form: str = "", target: str = ""
) -> Request:
    scope = (
        f"AWS4-HMAC-SHA256 Credential=testing/20260101/ap-south-1/{service}/aws4_request, SignedHeaders=host"
    )
    return Request(method, path, query, scope, target, form)


@pytest.mark.parametrize(
    ("asked", "operation"),
    [
        (request("ec2", form="Action=RunInstances&Version=2016-11-15"), "RunInstances"),
        (request("dynamodb", target="DynamoDB_20120810.PutItem"), "PutItem"),
        (request("tagging", path="/service/X_1/operation/GetResources"), "GetResources"),
        (request("s3", "PUT", "/bucket/a/b.sh"), "PutObject"),
        (request("s3", "PUT", "/bucket", "versioning"), "PutBucketVersioning"),
        (request("s3", "PUT", "/bucket"), "CreateBucket"),
        (request("s3", "HEAD", "/bucket/key"), "HeadObject"),
        (request("s3", "GET", "/bucket", "list-type=2&prefix=a"), "ListObjectsV2"),
        (request("s3", "POST", "/bucket", "delete"), "DeleteObjects"),
        (request("imagebuilder", "GET", "/GetImage", "imageBuildVersionArn=a"), "GetImage"),
        (Request("GET", "/bucket/key", "X-Amz-Signature=a", "", "", ""), "GetObject"),
    ],
)
def test_the_operation_of_a_request(asked: Request, operation: str) -> None:
    assert name_operation(asked) == operation


@pytest.mark.aws
def test_a_reset_gives_a_new_account_and_forgets_the_rest(standin: Standin) -> None:
    names = set(standin.ids)
    ec2(standin).create_vpc(CidrBlock="10.1.0.0/16")
    standin.script(outcome="denied", create_seconds=5)
    assert [str(call) for call in standin.creating_calls()] == ["ec2.CreateVpc"]
    standin.reset()
    assert (set(standin.ids), standin.calls(), standin.script()) == (names, (), Scenario())
    vpcs = ec2(standin).describe_vpcs(Filters=[{"Name": "cidr", "Values": ["10.1.0.0/16"]}])["Vpcs"]
    assert vpcs == []


@pytest.mark.aws
def test_the_account_has_what_its_ids_name(standin: Standin) -> None:
    client, ids = ec2(standin), standin.ids
    found = client.describe_capacity_reservations()["CapacityReservations"]
    by_id = {each["CapacityReservationId"]: each for each in found}
    good = by_id[ids["reservation"]]
    assert (good["InstanceType"], good["TotalInstanceCount"], good["AvailabilityZone"]) == (
        "p5en.48xlarge",
        2,
        "ap-south-1b",
    )
    assert by_id[ids["reservation_block"]]["ReservationType"] == "capacity-block"
    assert by_id[ids["reservation_expired"]]["State"] == "expired"
    assert by_id[ids["reservation_in_group"]]["PlacementGroupArn"] == ids["placement_group_arn"]
    groups = client.describe_placement_groups(GroupNames=[ids["placement_group"]])["PlacementGroups"]
    assert groups[0]["GroupArn"] == ids["placement_group_arn"]
    keys = {each["KeyName"]: each["KeyType"] for each in client.describe_key_pairs()["KeyPairs"]}
    assert keys == {"pd-key": "ed25519", "rsa-key": "rsa"}
    subnet = client.describe_subnets(SubnetIds=[ids["small_subnet"]])["Subnets"][0]
    assert subnet["CidrBlock"].endswith("/28")


@pytest.mark.aws
def test_what_is_held_ends_when_it_is_let_go(standin: Standin) -> None:
    """A stack that fails, since those that succeed are there at once: two roles of one name."""
    role = {"Type": "AWS::IAM::Role", "Properties": {"RoleName": "r", "AssumeRolePolicyDocument": {}}}
    template = json.dumps({"Resources": {"First": role, "Second": role}})
    cloudformation = aws_client(standin, "cloudformation")
    standin.script(hold=True)
    cloudformation.create_stack(StackName="pd", TemplateBody=template)
    for hold, status in ((True, "ROLLBACK_IN_PROGRESS"), (False, "ROLLBACK_COMPLETE")):
        standin.script(hold=hold)
        assert cloudformation.describe_stacks(StackName="pd")["Stacks"][0]["StackStatus"] == status


@pytest.mark.aws
def test_a_host_key_is_shown_with_its_fingerprint(standin: Standin) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAII30lpQFW3+GkZJmJJ+jZzYORRTrbJr9uzwuGPZoGbSf"
    standin.script(host_keys=(key,))
    client = ec2(standin)
    run = client.run_instances(
        ImageId=standin.ids["official_ami"], InstanceType="c6i.large", MinCount=1, MaxCount=1
    )
    console = client.get_console_output(InstanceId=run["Instances"][0]["InstanceId"])["Output"]
    done = subprocess.run(["ssh-keygen", "-lf", "-"], input=key, capture_output=True, text=True, check=True)
    assert f"256 {done.stdout.split()[1]} root@" in console


def test_a_field_that_there_is_not_is_refused_before_it_is_sent() -> None:
    with pytest.raises(TypeError):
        Standin("http://127.0.0.1:1", {}).script(speed=3)


def test_a_dry_run_creates_nothing() -> None:
    asked = request("ec2", form="Action=RunInstances&DryRun=true")
    assert is_dry_run(asked)
    assert not Call("ec2", "RunInstances", False, dry_run=True).creating
    assert Call("ec2", "RunInstances", True).creating
    assert not Call("ec2", "DescribeInstances", True).creating
    assert not Call("s3", "HeadObject", True).creating
    assert Call("iam", "CreateRole", False).creating
