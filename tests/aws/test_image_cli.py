"""`toolkit image` as a user runs it: the real command and the real pcluster against the stand-in."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from toolkit.remote.pcluster_env import PclusterEnv
from toolkit.testing.aws import Standin

pytestmark = pytest.mark.aws

ROOT = Path(__file__).parents[2]
P5EN = str(ROOT / "deployments" / "qwen3-32b-p5en.yaml")
NAME = "pd-3-14-2-nv580-126-16-cuda13-0-efa1-50-0"
OTHER = "pd-of-another-version"
BUCKET = "pd-toolkit-123456789012-ap-south-1"
REGION = "ap-south-1"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def image(standin: Standin, pcluster_env: Callable[[str], PclusterEnv]) -> Run:
    """`toolkit image VERB -f FILE ...`, without a terminal; its calls are remembered from its start."""
    pcluster_env("3.14.2")
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

    def run(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        standin.forget_calls()
        return subprocess.run(
            [sys.executable, "-m", "toolkit", "image", verb, "-f", P5EN, *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**own, **standin.environment},
        )

    return run


@pytest.fixture
def clients(standin: Standin) -> Callable[[str], Any]:
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    return lambda name: boto3.client(name, region_name=REGION, endpoint_url=standin.url, **keys)


@pytest.fixture
def other(standin: Standin, clients: Callable[[str], Any]) -> str:
    """This account's image of another ParallelCluster, as a finished build leaves it."""
    ec2 = clients("ec2")
    parent = standin.ids["other_version_ami"]
    started = ec2.run_instances(ImageId=parent, InstanceType="c6i.large", MinCount=1, MaxCount=1)
    instance = started["Instances"][0]["InstanceId"]
    ami: str = ec2.create_image(InstanceId=instance, Name=OTHER)["ImageId"]
    ec2.terminate_instances(InstanceIds=[instance])
    folder = {"s3_bucket": standin.ids["bucket"], "s3_image_dir": f"parallelcluster/3.13.0/images/{OTHER}"}
    told = {"image_id": OTHER, "version": "3.13.0", "build_status": "available", **folder}
    tags = [{"Key": f"parallelcluster:{key}", "Value": value} for key, value in told.items()]
    ec2.create_tags(Resources=[ami], Tags=tags)
    return ami


def test_a_build_without_consent_creates_nothing_and_shows_everything(image: Run, standin: Standin) -> None:
    done = image("build")
    assert done.returncode == 2
    for shown in (
        f"image {NAME} for ParallelCluster 3.14.2",
        f"from {standin.ids['official_ami']}",
        "NVIDIA driver 580.126.16",
        "EFA installer 1.50.0",
        f"bucket {BUCKET}, which does not exist yet",
        "g6.4xlarge: by the second",
        "AMI's snapshot",
        "PClusterBuildImageCleanupRole",
        "Add --yes to go on",
    ):
        assert shown in done.stderr
    # Not even pcluster's dry run, which would make an IAM role.
    assert standin.creating_calls() == ()


@pytest.mark.slow
def test_an_image_is_built_shown_not_built_twice_and_deleted(image: Run, standin: Standin) -> None:
    standin.script(image_seconds=5)
    done = image("build", "--yes")
    assert done.returncode == 0, done.stderr
    ami = done.stdout.strip()
    assert ami.startswith("ami-")
    assert f"bucket {BUCKET}: made" in done.stderr
    assert "30-driver done: NVIDIA driver 580.126.16" in done.stderr
    assert f"image {NAME}: available as {ami}" in done.stderr
    made = [str(call) for call in standin.creating_calls()]
    assert made.index("s3.CreateBucket") < made.index("s3.PutObject") < made.index("iam.CreateRole")
    assert made[-1] == "cloudformation.CreateStack"

    again = image("build", "--yes")
    assert (again.returncode, again.stdout.strip()) == (0, ami)
    assert "is available: driver 580.126.16, cuda 13.0.2" in again.stderr
    assert standin.creating_calls() == ()

    listed = json.loads(image("list", "-o", "json").stdout)
    assert {
        "image": NAME,
        "status": "BUILD_COMPLETE",
        "parallelcluster": "3.14.2",
        "ami": ami,
        "driver": "580.126.16",
        "cuda": "13.0.2",
        "efa": "3.3.0-1.amzn1",
        "kernel": "6.14.0-1018-aws",
    } in listed

    described = image("describe", "-o", "json")
    assert described.returncode == 0, described.stderr
    assert json.loads(described.stdout)["deviations"] == []

    assert image("delete").returncode == 2
    assert standin.creating_calls() == ()
    gone = image("delete", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert "ec2.DeregisterImage" in map(str, standin.creating_calls())
    assert image("describe").returncode == 1


@pytest.mark.slow
def test_what_the_build_reads_is_what_the_dry_run_said(
    image: Run, clients: Callable[[str], Any], standin: Standin
) -> None:
    standin.script(image_seconds=3600)
    assert image("build", "--yes", "--no-wait").returncode == 0
    s3 = clients("s3")
    keys = [each["Key"] for each in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    (component,) = (key for key in keys if key.endswith(".sh"))
    (payload,) = (key for key in keys if key.endswith(".tar.gz"))
    body = s3.get_object(Bucket=BUCKET, Key=component)["Body"].read()
    sent = s3.get_object(Bucket=BUCKET, Key=payload)["Body"].read()
    assert f"component-{hashlib.sha256(body).hexdigest()[:16]}.sh" in component
    assert (
        f"payload=s3://{BUCKET}/{payload}\npayload_sha256={hashlib.sha256(sent).hexdigest()}\n"
        in body.decode()
    )
    shown = image("build", "--dry-run", "--show", "component").stdout
    digests = r"payload-[0-9a-f]{16}|payload_sha256=\w+"
    assert re.sub(digests, "", shown) == re.sub(digests, "", body.decode())

    refused = image("delete", "--yes")
    assert refused.returncode == 1
    assert "is being built" in refused.stderr
    assert standin.creating_calls() == ()


@pytest.mark.slow
def test_a_build_of_the_other_version(
    image: Run, standin: Standin, pcluster_env: Callable[[str], PclusterEnv]
) -> None:
    pcluster_env("3.16.1")
    done = image("build", "--yes", "--set", "target.version=3.16.1")
    assert done.returncode == 0, done.stderr
    assert f"from {standin.ids['official_ami_3_16_1']}; step 10-hold-kernel fails unless" in done.stderr
    described = image("describe", "--set", "target.version=3.16.1", "-o", "json")
    assert json.loads(described.stdout)["image"] == NAME.replace("3-14-2", "3-16-1")


@pytest.mark.slow
def test_a_failed_build_is_told_with_its_step_and_built_anew_only_on_request(
    image: Run, standin: Standin
) -> None:
    standin.script(image_outcome="component-failed")
    done = image("build", "--yes")
    assert done.returncode == 1
    assert "30-driver failed: dkms module nvidia" in done.stderr
    assert "| Stdout: Error! Bad return status for module build" in done.stderr
    assert "Next: read /var/lib/dkms/nvidia" in done.stderr
    described = image("describe")
    assert described.returncode == 1
    assert "BUILD_FAILED" in described.stdout
    assert "30-driver failed" in described.stderr

    refused = image("build", "--yes")
    assert refused.returncode == 1
    assert "--rebuild removes it" in refused.stderr
    assert standin.creating_calls() == ()

    standin.script(image_outcome="complete", nvidia_version="570.172.08")
    rebuilt = image("build", "--yes", "--rebuild")
    assert rebuilt.returncode == 0, rebuilt.stderr
    wrong = image("describe")
    assert wrong.returncode == 1
    assert "NVIDIA driver: expected 580.126.16, found 570.172.08" in wrong.stderr


@pytest.mark.slow
def test_a_build_that_was_left_is_followed(image: Run, standin: Standin) -> None:
    standin.script(image_seconds=8)
    started = image("build", "--yes", "--no-wait")
    assert (started.returncode, started.stdout.strip()) == (0, NAME)
    followed = image("build", "--yes")
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout.startswith("ami-")
    assert standin.creating_calls() == ()
    assert image("describe", "--wait").returncode == 0


def test_an_image_in_use_is_kept(
    image: Run, standin: Standin, clients: Callable[[str], Any], other: str
) -> None:
    tags = [{"Key": "parallelcluster:cluster-name", "Value": "pd"}]
    started = clients("ec2").run_instances(
        ImageId=other,
        InstanceType="c6i.2xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    instance = started["Instances"][0]["InstanceId"]
    named = ("--set", f"target.image.name={OTHER}", "--yes")
    for verb in (("delete", *named), ("build", *named, "--rebuild")):
        done = image(*verb)
        assert done.returncode == 1
        assert f"({other}) is in use by {instance} (running) of cluster pd" in done.stderr
        assert standin.creating_calls() == ()
    assert image("delete", *named, "--force").returncode == 0
    assert image("describe", "--name", OTHER).returncode == 1


def test_an_image_of_other_versions_is_told_and_not_used(image: Run, standin: Standin, other: str) -> None:
    described = image("describe", "--name", OTHER, "-o", "yaml")
    assert described.returncode == 1
    assert f"ami: {other}" in described.stdout
    assert "ParallelCluster: expected 3.14.2, found 3.13.0" in described.stdout
    used = image("build", "--yes", "--set", f"target.image.name={OTHER}")
    assert used.returncode == 1
    assert "is not what ami-setup/versions.yaml says: ParallelCluster: expected 3.14.2" in used.stderr
    assert "--rebuild" in used.stderr
    assert standin.creating_calls() == ()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("target.bucket=null", "target.bucket is not given"),
        ("target.image.ami=ami-0123456789abcdef0", "target.image.ami"),
        ("target.image.build_instance_type=g99.4xlarge", "EC2 does not offer g99.4xlarge"),
    ],
)
def test_a_build_that_can_not_work_is_refused_before_anything_is_made(
    image: Run, standin: Standin, setting: str, told: str
) -> None:
    done = image("build", "--yes", "--set", setting)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert "Next: " in done.stderr
    assert standin.creating_calls() == ()


def without_default_vpc(ec2: Any) -> None:
    default = [{"Name": "is-default", "Values": ["true"]}]
    (vpc,) = ec2.describe_vpcs(Filters=default)["Vpcs"]
    inside = [{"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
    for subnet in ec2.describe_subnets(Filters=inside)["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    ec2.delete_vpc(VpcId=vpc["VpcId"])


def test_a_region_without_a_default_vpc_asks_for_a_place(
    image: Run, standin: Standin, clients: Callable[[str], Any]
) -> None:
    without_default_vpc(clients("ec2"))
    done = image("build", "--yes")
    assert done.returncode == 1
    assert "has no default VPC" in done.stderr
    assert "target.network.security_groups" in done.stderr
    assert "target.network.create: true" in done.stderr
    assert standin.creating_calls() == ()
    place = f"{{compute_subnet: {standin.ids['private_subnet']}, security_groups: [{standin.ids['sg_efa']}]}}"
    asked = image("build", "--set", f"target.network={place}")
    assert f"in {standin.ids['private_subnet']} by EC2 Image Builder" in asked.stderr


@pytest.mark.slow
@pytest.mark.parametrize("reserved", [True, False])
def test_a_network_of_its_own_is_made_for_the_build_where_there_is_no_other_place(
    image: Run, standin: Standin, clients: Callable[[str], Any], reserved: bool
) -> None:
    without_default_vpc(clients("ec2"))
    capacity = standin.ids["reservation"] if reserved else "null"
    own = ("--set", "target.network={create: true}", "--set", f"target.capacity.reservation={capacity}")
    asked = image("build", *own)
    assert asked.returncode == 2
    assert "network stack pd-p5en-network: VPC" in asked.stderr
    assert "NAT gateway: by the hour" in asked.stderr
    assert standin.creating_calls() == ()

    built = image("build", *own, "--yes")
    assert built.returncode == 0, built.stderr
    made = [str(call) for call in standin.creating_calls()]
    assert made.count("cloudformation.CreateStack") == 2
    assert made.index("cloudformation.CreateStack") < made.index("s3.CreateBucket")
    stack = clients("cloudformation").describe_stacks(StackName="pd-p5en-network")["Stacks"][0]
    ids = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}

    again = image("build", *own, "--rebuild")
    assert f"in {ids['ComputeSubnet']} by EC2 Image Builder" in again.stderr
    assert "network stack" not in again.stderr


def test_a_network_costs_nothing_where_the_default_vpc_serves(image: Run, standin: Standin) -> None:
    asked = image("build", "--set", "target.network={create: true}")
    assert "in the default VPC by EC2 Image Builder" in asked.stderr
    assert "NAT gateway" not in asked.stderr
    assert standin.creating_calls() == ()


@pytest.mark.parametrize(
    "refused",
    [
        "target.image.build_instance_type=c6i.2xlarge",  # no GPU
        "target.image.volume_gb=10",  # smaller than the parent
    ],
)
def test_a_rebuild_that_pcluster_refuses_keeps_the_image(
    image: Run, standin: Standin, other: str, refused: str
) -> None:
    named = ("--set", f"target.image.name={OTHER}")
    done = image("build", *named, "--set", refused, "--rebuild", "--yes")
    assert done.returncode == 1, done.stderr
    assert "ec2.DeregisterImage" not in map(str, standin.creating_calls())
    assert "cloudformation.CreateStack" not in map(str, standin.creating_calls())
    assert f"ami: {other}" in image("describe", *named, "-o", "yaml").stdout


def test_an_image_that_is_not_there_is_told(image: Run, standin: Standin) -> None:
    done = image("describe", "--name", "nothing-of-that-name")
    assert done.returncode == 1
    assert "neither an image nothing-of-that-name" in done.stderr
    gone = image("delete", "--yes", "--name", "nothing-of-that-name")
    assert gone.returncode == 0
    assert "there is no image nothing-of-that-name" in gone.stderr
    assert standin.creating_calls() == ()
