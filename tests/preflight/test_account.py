"""The real reader against the stand-in: each mistake of the seeded account is told, and nothing is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolkit.plan.cluster import Found, parallelcluster_version, plan_cluster
from toolkit.plan.image import image_name
from toolkit.plan.instance_type import known_instance_types
from toolkit.plan.node_software import node_software
from toolkit.preflight.check import check_plan
from toolkit.preflight.problem import Problem
from toolkit.remote.aws_facts import AwsReader
from toolkit.remote.aws_session import client
from toolkit.render.cluster import render_cluster
from toolkit.settings.load import load
from toolkit.settings.target import ParallelClusterTarget
from toolkit.testing.aws import Standin, aws_standin

pytestmark = pytest.mark.aws

REGION = "ap-south-1"
FILE = Path(__file__).parents[2] / "deployments" / "qwen3-32b-p5en.yaml"


@pytest.fixture(scope="module")
def running() -> Iterator[Standin]:
    with aws_standin() as standin, pytest.MonkeyPatch.context() as patch:
        for name, value in standin.environment.items():
            patch.setenv(name, value)
        standin.ids["built_ami"] = build_image(standin.ids["official_ami"])
        standin.ids["open_reservation"] = open_reservation()
        yield standin


@pytest.fixture
def account(running: Standin) -> Standin:
    running.forget_calls()
    return running


def build_image(source: str) -> str:
    """What a build of the default image leaves: an AMI with the tags that build-image writes."""
    ec2, software = client("ec2", REGION), node_software()
    started = ec2.run_instances(ImageId=source, InstanceType="g6.4xlarge", MinCount=1, MaxCount=1)
    instance = started["Instances"][0]["InstanceId"]
    name = image_name(software, software.parallelcluster)
    ami = ec2.create_image(InstanceId=instance, Name=f"{name} 2026-03-01")["ImageId"]
    tags = {
        "image_id": name,
        "build_status": "available",
        "version": software.parallelcluster,
        "os": "ubuntu2404",
        "nvidia_version": software.nvidia_driver,
        "cuda_version": f"{software.cuda}.2",
        "efa_version": "3.3.0-1.amzn1",
        "kernel_version": software.kernel,
    }
    written = [{"Key": f"parallelcluster:{key}", "Value": value} for key, value in tags.items()]
    ec2.create_tags(Resources=[ami], Tags=written)
    return str(ami)


def open_reservation() -> str:
    made = client("ec2", REGION).create_capacity_reservation(
        InstanceType="p5en.48xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="ap-south-1b",
        InstanceCount=2,
        InstanceMatchCriteria="open",
    )
    return str(made["CapacityReservation"]["CapacityReservationId"])


def checked(standin: Standin, *settings: str) -> tuple[Problem, ...]:
    """As `cluster create` does it: read types and image, plan, read the rest, check."""
    ids = standin.ids
    right = (
        f"target.network.head_subnet={ids['public_subnet']}",
        f"target.network.compute_subnet={ids['private_subnet']}",
        f"target.bucket={ids['bucket']}",
        *(setting.format(**ids) for setting in settings),
    )
    given = load(FILE, right)
    target = given.deployment.target
    assert isinstance(target, ParallelClusterTarget)
    reader, first = AwsReader(REGION), plan_cluster(target)
    types = reader.instance_types(
        [target.head.instance_type, target.gpu.instance_type, target.router.instance_type]
    )
    image = reader.image(first.image, parallelcluster_version(target)) if first.image else None
    found = Found(ami=image.id if image else None, instance_types=types)
    plan = plan_cluster(target, found)
    document = yaml.safe_load(render_cluster(plan))
    facts = reader.facts(target, plan, document)
    return check_plan(plan, given.deployment, document, facts, given.sources)


RIGHT = [
    (),
    ("target.image.ami={built_ami}",),
    ("target.storage.file_system={filesystem}",),
    ("target.capacity.kind=capacity-block", "target.capacity.reservation={reservation_block}"),
    (
        "target.capacity.reservation={reservation_in_group}",
        "target.capacity.placement_group={placement_group}",
    ),
    ("target.scripts=[{{script: 's3://{bucket}/bootstrap/configure.sh'}}]",),
    # Beside ParallelCluster's own group, which lets the head node in.
    ("target.network.security_groups=[{sg_efa}]",),
]


@pytest.mark.parametrize("settings", RIGHT, ids=lambda settings: " ".join(settings) or "as published")
def test_a_right_cluster_has_no_error(account: Standin, settings: tuple[str, ...]) -> None:
    found = checked(account, *settings)
    assert not [str(problem) for problem in found if problem.is_error]
    assert {problem.check for problem in found} == {"ssh-from-everywhere"}
    assert not account.creating_calls()


RESERVATION, COMPUTE = "target.capacity.reservation", "target.network.compute_subnet"
GROUPS, AMI = "target.network.security_groups", "target.image.ami"
MISTAKES = [
    ([f"{RESERVATION}=cr-0ddddddddddddddd1"], "error", RESERVATION, "there is no such capacity reservation"),
    ([RESERVATION + "={reservation_wrong_type}"], "error", RESERVATION, "is for p5.48xlarge"),
    ([RESERVATION + "={reservation_wrong_az}"], "error", RESERVATION, "is in ap-south-1a"),
    ([RESERVATION + "={reservation_one}"], "error", RESERVATION, "holds 1 instance"),
    ([RESERVATION + "={reservation_expired}"], "error", RESERVATION, "is expired, not active"),
    ([RESERVATION + "={reservation_cancelled}"], "error", RESERVATION, "is cancelled, not active"),
    ([RESERVATION + "={open_reservation}"], "warning", RESERVATION, "is open, not targeted"),
    ([RESERVATION + "={reservation_block}"], "error", "target.capacity.kind", "is a capacity block"),
    (["target.capacity.kind=capacity-block"], "error", "target.capacity.kind", "not a capacity block"),
    (
        [RESERVATION + "={reservation_in_group}"],
        "error",
        "target.capacity.placement_group",
        "was made in placement group pd-group",
    ),
    (
        ["target.capacity.placement_group=elsewhere"],
        "error",
        "target.capacity.placement_group",
        "there is no placement group of that name",
    ),
    ([f"{COMPUTE}=subnet-0ddddddddddddddd1"], "error", COMPUTE, "there is no such subnet"),
    ([COMPUTE + "={private_subnet_other_az}"], "error", RESERVATION, "is in ap-south-1b, but"),
    ([COMPUTE + "={small_subnet}"], "error", COMPUTE, "has 11 free addresses, but 33 are needed"),
    ([COMPUTE + "={public_subnet}"], "error", COMPUTE, "gives public addresses, which EC2 refuses"),
    ([GROUPS + "=[{sg_no_efa}]"], "error", GROUPS, "no rule that allows all traffic from and to itself"),
    ([GROUPS + "=[{sg_efa}, {sg_no_efa}]"], "error", GROUPS, "no rule that allows all traffic"),
    ([GROUPS + "=[sg-0ddddddddddddddd1]"], "error", GROUPS, "there is no security group"),
    (["target.ssh.key_name=nobody"], "error", "target.ssh.key_name", "there is no key pair"),
    (["target.ssh.key_name={rsa_key}"], "error", "target.ssh.key_name", "is an RSA key"),
    ([f"{AMI}=ami-0ddddddddddddddd1"], "error", AMI, "there is no such AMI"),
    ([AMI + "={plain_ubuntu_ami}"], "error", AMI, "was not made by ParallelCluster"),
    ([AMI + "={other_version_ami}"], "error", AMI, "was made for ParallelCluster 3.13.0"),
    ([AMI + "={official_ami}"], "error", AMI, "is ParallelCluster's own AMI"),
    ([AMI + "={official_ami_3_16_1}"], "error", AMI, "was made for ParallelCluster 3.16.1"),
    (["target.version=3.16.1"], "error", "target.image.name", "no image of that name is built"),
    (["target.image.official=true"], "warning", "target.image.official", "has an older driver"),
    (
        ["target.storage.file_system=fs-0ddddddddddddddd1"],
        "error",
        "target.storage.file_system",
        "there is no such file system",
    ),
    (
        ["target.storage.file_system={filesystem_no_988}"],
        "error",
        "target.storage.file_system",
        "does not let TCP 988 and 1018-1023 in from the head node",
    ),
    (
        ["target.scripts=[{{script: 's3://{bucket}/bootstrap/absent.sh'}}]"],
        "error",
        "target.scripts",
        "there is no such object",
    ),
    (
        ["target.gpu.instance_type=p5en.47xlarge"],
        "error",
        "target.gpu.instance_type",
        "no such instance type",
    ),
    (["target.gpu.instance_type=c6i.8xlarge"], "error", "target.gpu.health_check", "has no GPU"),
]


@pytest.mark.parametrize(("settings", "level", "key", "reason"), MISTAKES, ids=lambda each: str(each)[:50])
def test_a_mistake_is_told_and_nothing_is_made(
    account: Standin, settings: list[str], level: str, key: str, reason: str
) -> None:
    found = checked(account, *settings)
    told = [each for each in found if (each.level, each.key) == (level, key) and reason in each.reason]
    assert len(told) == 1, "\n".join(map(str, found))
    assert told[0].where.startswith(("--set ", "default", "file "))
    assert not account.creating_calls()


def test_a_taken_name_is_told(account: Standin) -> None:
    formation = client("cloudformation", REGION)
    template = '{"Resources": {"Group": {"Type": "AWS::Logs::LogGroup"}}}'
    formation.create_stack(StackName="pd-p5en", TemplateBody=template)
    try:
        found = [each for each in checked(account) if each.is_error]
    finally:
        formation.delete_stack(StackName="pd-p5en")
    assert [(each.key, each.check) for each in found] == [("target.cluster_name", "name-free")]


def test_a_foreign_bucket_is_told(account: Standin) -> None:
    """The bucket of another account of the same stand-in."""
    role = client("sts", REGION).assume_role(
        RoleArn="arn:aws:iam::222222222222:role/anybody", RoleSessionName="other"
    )
    keys: dict[str, Any] = role["Credentials"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
        patch.setenv("AWS_SESSION_TOKEN", keys["SessionToken"])
        client("s3", REGION).create_bucket(
            Bucket="pd-of-others", CreateBucketConfiguration={"LocationConstraint": REGION}
        )
    account.forget_calls()
    found = [each for each in checked(account, "target.bucket=pd-of-others") if each.is_error]
    assert [each.check for each in found] == ["bucket-is-ours"]
    assert not account.creating_calls()


@pytest.mark.usefixtures("account")
def test_the_shipped_types_are_what_aws_says() -> None:
    shipped = known_instance_types()
    asked = AwsReader(REGION).instance_types(shipped)
    assert set(asked) == set(shipped)
    assert asked == {name: replace(each, numa_nodes=None) for name, each in shipped.items()}
