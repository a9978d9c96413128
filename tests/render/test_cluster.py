"""A cluster's plan as the configuration that ParallelCluster gets: whole, and with hostile values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from toolkit.plan.cluster import Found, plan_cluster
from toolkit.render.cluster import render_cluster
from toolkit.settings.deployment import Deployment
from toolkit.settings.override import OWNED, owned_override
from toolkit.settings.target import ParallelClusterTarget

SHIPPED = ("qwen3-32b-p5en", "glm-5-fp8-p5en")
VERSIONS = ("3.14.2", "3.16.1")
# What YAML, JSON, Jinja and a shell each take for more than text.
HOSTILE = (
    'say "no"',
    "it's",
    "a: b",
    "# no comment",
    "{{ plan.name }}{% raw %}",
    "$(id) `id` ; id",
    "back\\slash \\n",
    "two\nlines\n- Script: s3://x/y",
    "tab\tand  spaces ",
    "yes",
    "1e3",
    "null",
    "é ü 東 \u2028\u0085 😀",
    "!!python/object:os.system",
    "&anchor *alias",
)

Make = Callable[..., Deployment]


def target(settings: Deployment) -> ParallelClusterTarget:
    assert isinstance(settings.target, ParallelClusterTarget)
    return settings.target


def rendered(settings: Deployment, **found: Any) -> Any:
    return yaml.safe_load(render_cluster(plan_cluster(target(settings), Found(**found))))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_deployments_whole(
    deployment: Make, golden: Callable[[str, str], None], name: str, version: str
) -> None:
    plan = plan_cluster(target(deployment(name, f"target.version={version}")))
    golden(f"cluster/{name}-{version}.yaml", render_cluster(plan))


@pytest.mark.parametrize("value", [value for value in HOSTILE if value.isprintable() or "\n" in value])
def test_a_tag_stays_a_value(deployment: Make, value: str) -> None:
    settings = target(deployment(SHIPPED[0])).model_copy(update={"tags": {"project": value, "plain": "pd"}})
    document = yaml.safe_load(render_cluster(plan_cluster(settings)))
    assert document["Tags"] == [{"Key": "project", "Value": value}, {"Key": "plain", "Value": "pd"}]
    assert set(document) == {
        *("Region", "Image", "HeadNode", "Imds", "Scheduling", "SharedStorage", "Monitoring", "Tags")
    }


@pytest.mark.parametrize("value", HOSTILE)
def test_a_script_argument_stays_a_value(deployment: Make, value: str) -> None:
    from toolkit.settings.cluster import Script

    script = Script.model_construct(script="s3://mine/x.sh", args=(value, "last"), nodes=("head", "gpu"))
    settings = target(deployment(SHIPPED[0])).model_copy(update={"scripts": (script,)})
    document = yaml.safe_load(render_cluster(plan_cluster(settings)))
    gpu, router = document["Scheduling"]["SlurmQueues"]
    for part in (document["HeadNode"], gpu):
        own, theirs = part["CustomActions"]["OnNodeConfigured"]["Sequence"]
        assert own["Script"].startswith("s3://pd-toolkit-123456789012-ap-south-1/pd-p5en/verify-")
        assert theirs == {"Script": "s3://mine/x.sh", "Args": [value, "last"]}
    assert len(router["CustomActions"]["OnNodeConfigured"]["Sequence"]) == 1


@pytest.mark.parametrize("name", ["yes", "no", "on", "off", "null", "true", "y", "e1"])
def test_a_partition_named_like_a_yaml_word_stays_a_name(deployment: Make, name: str) -> None:
    document = rendered(deployment(SHIPPED[0], f'target.gpu_partition="{name}"'))
    assert document["Scheduling"]["SlurmQueues"][0]["Name"] == name


def test_scripts_may_be_read_where_they_run(deployment: Make) -> None:
    """pcluster does not check that a node can read its script's bucket."""
    settings = deployment(
        SHIPPED[0],
        'target.scripts=[{"script": "s3://mine/deep/x.sh", "nodes": ["router"]}, {"script": "s3://root/y.sh"}]',
    )
    document = rendered(settings)
    ours = {"BucketName": "pd-toolkit-123456789012-ap-south-1", "KeyName": "pd-p5en/*"}
    root = {"BucketName": "root", "KeyName": "*"}
    gpu, router = document["Scheduling"]["SlurmQueues"]
    assert document["HeadNode"]["Iam"]["S3Access"] == gpu["Iam"]["S3Access"] == [ours, root]
    assert router["Iam"]["S3Access"] == [ours, {"BucketName": "mine", "KeyName": "deep/*"}, root]


def test_the_official_image_runs_no_check_of_ours(deployment: Make) -> None:
    document = rendered(deployment(SHIPPED[0], "target.image.official=true", "target.bucket=null"))
    assert document["Image"] == {"Os": "ubuntu2404"}
    assert "CustomActions" not in document["HeadNode"]
    assert "S3Access" not in document["HeadNode"]["Iam"]


def test_what_aws_tells_takes_the_place_of_the_words(deployment: Make) -> None:
    document = rendered(deployment(SHIPPED[0]), ami="ami-0123456789abcdef0")
    assert document["Image"]["CustomAmi"] == "ami-0123456789abcdef0"
    made = deployment(
        SHIPPED[0],
        "target.network.create=true",
        "target.network.head_subnet=null",
        "target.network.compute_subnet=null",
    )
    assert rendered(made)["HeadNode"]["Networking"]["SubnetId"] == "SUBNET_OF_HEAD_NODE"
    document = rendered(made, head_subnet="subnet-1", compute_subnet="subnet-2")
    assert document["HeadNode"]["Networking"]["SubnetId"] == "subnet-1"
    assert [q["Networking"]["SubnetIds"] for q in document["Scheduling"]["SlurmQueues"]] == [["subnet-2"]] * 2


@pytest.mark.parametrize(
    ("kind", "capacity", "reservation"),
    [
        ("reservation", "ONDEMAND", "cr-0123456789abcdef0"),
        ("capacity-block", "CAPACITY_BLOCK", "cr-0123456789abcdef0"),
        ("on-demand", "ONDEMAND", None),
        ("spot", "SPOT", None),
    ],
)
def test_capacity(deployment: Make, kind: str, capacity: str, reservation: str | None) -> None:
    given = f"target.capacity.reservation={reservation or 'null'}"
    document = rendered(deployment(SHIPPED[0], f"target.capacity.kind={kind}", given))
    gpu, router = document["Scheduling"]["SlurmQueues"]
    assert gpu["CapacityType"] == capacity
    found = gpu["ComputeResources"][0].get("CapacityReservationTarget", {}).get("CapacityReservationId")
    assert found == reservation
    assert router["CapacityType"] == "ONDEMAND"
    assert "CapacityReservationTarget" not in router["ComputeResources"][0]


def test_an_existing_file_system_is_mounted_and_not_made(deployment: Make) -> None:
    document = rendered(deployment(SHIPPED[0], "target.storage.file_system=fs-0123456789abcdef0"))
    assert document["SharedStorage"][0]["FsxLustreSettings"] == {"FileSystemId": "fs-0123456789abcdef0"}


def test_overrides_stand_beside_the_configuration(deployment: Make) -> None:
    """Sections are merged, so that one key can be added beside ours; lists are joined."""
    settings = deployment(
        SHIPPED[0],
        'target.overrides={"HeadNode": {"DisableSimultaneousMultithreading": true, "Iam": '
        '{"AdditionalIamPolicies": [{"Policy": "arn:aws:iam::123456789012:policy/mine"}]}}, '
        '"DevSettings": {"Timeouts": {"HeadNodeBootstrapTimeout": 3600}}}',
    )
    document = rendered(settings)
    head = document["HeadNode"]
    assert head["DisableSimultaneousMultithreading"] is True
    assert head["InstanceType"] == "c6i.2xlarge"
    assert [each["Policy"].rpartition("/")[2] for each in head["Iam"]["AdditionalIamPolicies"]] == [
        "AmazonSSMManagedInstanceCore",
        "mine",
    ]
    assert document["DevSettings"] == {"Timeouts": {"HeadNodeBootstrapTimeout": 3600}}


def leaves(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of every value; a list is one, since an override can't reach into it."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from leaves(value, (*path, key))
    else:
        yield path


# Everything that the template can set.
FORMS = (
    (),
    ("target.tags={project: pd}", "target.image.ami=ami-0123456789abcdef0"),
    ("target.image.official=true", "target.bucket=null", "target.storage.file_system=fs-0123456789abcdef0"),
    ("target.scripts=[{script: 's3://mine/x.sh', args: [a]}]", "target.capacity.placement_group=pd"),
)


@pytest.mark.parametrize("value", [None, "other", [], {"Key": "Value"}], ids=repr)
@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
def test_no_override_replaces_what_the_template_sets(
    deployment: Make, form: tuple[str, ...], value: Any
) -> None:
    """Each value of the rendered configuration, and each section above one, given by an override: it is
    refused, or what was there is there still."""
    document = rendered(deployment(SHIPPED[0], *form))
    plan = plan_cluster(target(deployment(SHIPPED[0], *form)))
    found = list(leaves(document))
    assert len(found) > 15
    for path in {leaf[: n + 1] for leaf in found for n in range(len(leaf))}:
        override: Any = value
        for key in reversed(path):
            override = {key: override}
        if owned_override(override):
            continue
        changed = yaml.safe_load(render_cluster(replace(plan, overrides=override)))
        for leaf in found:
            was, now = (value_of(each, leaf) for each in (document, changed))
            assert now[: len(was)] == was if isinstance(was, list) else now == was, (
                f"{override} replaces {leaf}"
            )


def value_of(document: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


@pytest.mark.parametrize("path", [path for path in OWNED if path != "HeadNode.Networking.SecurityGroups"])
def test_what_overrides_may_not_touch_is_there(deployment: Make, path: str) -> None:
    """A path that the template no longer sets would shut overrides out for nothing."""
    settings = deployment(SHIPPED[0], "target.tags={project: pd}", "target.image.ami=ami-0123456789abcdef0")
    assert value_of(rendered(settings), tuple(path.split("."))) is not None


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("ap-south-1", "aws"),
        ("us-east-1", "aws"),
        ("us-gov-west-1", "aws-us-gov"),
        ("cn-north-1", "aws-cn"),
        ("cn-northwest-1", "aws-cn"),
    ],
)
def test_every_arn_is_of_the_regions_partition(deployment: Make, region: str, partition: str) -> None:
    plan = plan_cluster(target(deployment(SHIPPED[0], f"target.region={region}")))
    arns = re.findall(r"arn:([a-z-]+):", render_cluster(plan))
    assert len(arns) == 3
    assert set(arns) == {partition}


def test_security_groups_stand_beside_the_managed_one(deployment: Make) -> None:
    """In its place, nothing would let the head node reach slurmd."""
    document = rendered(deployment(SHIPPED[0], "target.network.security_groups=[sg-0123456789abcdef0]"))
    for queue in document["Scheduling"]["SlurmQueues"]:
        assert queue["Networking"]["AdditionalSecurityGroups"] == ["sg-0123456789abcdef0"]
        assert "SecurityGroups" not in queue["Networking"]
