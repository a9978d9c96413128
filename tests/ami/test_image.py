"""Image configuration and component script: whole golden files, shell syntax, values that are refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from toolkit.errors import SettingsError
from toolkit.plan.image import LONGEST_NAME, ImagePlan, image_name
from toolkit.plan.node_check import node_check
from toolkit.plan.node_software import node_software
from toolkit.render.image import render_component, render_image_config, setup_files

SOFTWARE = node_software()
PLAN = ImagePlan(
    name=image_name(SOFTWARE, "3.14.2"),
    parallelcluster="3.14.2",
    region="ap-south-1",
    parent_image="ami-0133f195033a4baae",
    instance_type="g4dn.4xlarge",
    component_url="s3://pd-scripts/image/component.sh",
    payload_url="s3://pd-scripts/image/payload.tar.gz",
    payload_sha256="4f" * 32,
    software=SOFTWARE,
    subnet_id="subnet-0123456789abcdef0",
    security_group_ids=("sg-0123456789abcdef0",),
    tags=(("project", "pd"),),
)


def test_golden_files(golden: Callable[[str, str], None]) -> None:
    golden("image/image.yaml", render_image_config(PLAN))
    golden("image/component.sh", render_component(PLAN))
    golden("image/verify.sh", node_check())


def test_the_default_name() -> None:
    assert PLAN.name == "pd-3-14-2-nv580-126-16-cuda13-0-efa1-50-0"


@pytest.mark.parametrize("text", [render_component(PLAN), node_check()], ids=["component", "verify"])
def test_scripts_are_sound_shell(text: str, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(text)
    for checker in (["bash", "-n"], ["shellcheck"]):
        done = subprocess.run([*checker, str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_component_lays_down_the_files_as_they_are(tmp_path: Path) -> None:
    """Its first part, up to the payload, is run with the setup folder elsewhere."""
    text, _, _ = render_component(PLAN).partition("# shellcheck source=/dev/null")
    folder = tmp_path / "ami setup"
    subprocess.run(["bash", "-c", text.replace("setup=/opt/pd/ami-setup", f"setup='{folder}'")], check=True)
    laid = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert laid == setup_files()
    steps = [name for name in laid if name.startswith("steps/")]
    assert sorted(name[6:8] for name in steps) == ["10", "20", "30", "40", "50", "60", "70", "80", "90"]


def test_an_address_reaches_the_script_unchanged(tmp_path: Path) -> None:
    url = "s3://pd-scripts/$(touch${IFS}pwned)`x`'\"\\*é.tar.gz"
    text = render_component(replace(PLAN, payload_url=url))
    [line] = [line for line in text.splitlines() if line.startswith("payload='s3:")]
    script = f'{line}; printf %s "$payload"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (done.stdout, list(tmp_path.iterdir())) == (url, [])


def test_the_configuration_says_what_pcluster_demands() -> None:
    config = yaml.safe_load(render_image_config(PLAN))
    assert config["Build"]["UpdateOsPackages"] == {"Enabled": False}
    assert config["Build"]["Installation"]["NvidiaSoftware"] == {"Enabled": True}
    assert config["Build"]["Components"] == [{"Type": "script", "Value": PLAN.component_url}]
    assert config["DevSettings"] == {"DisableKernelUpdate": True, "TerminateInstanceOnFailure": True}
    tags = {tag["Key"]: tag["Value"] for tag in config["Image"]["Tags"]}
    assert tags["project"] == "pd"
    assert tags["pd:kernel"] == "6.14.0-1018-aws"


def test_without_a_network_none_is_named() -> None:
    build = yaml.safe_load(render_image_config(replace(PLAN, subnet_id=None, security_group_ids=())))["Build"]
    assert not {"SubnetId", "SecurityGroupIds"} & set(build)


@pytest.mark.parametrize("value", ['quo"te', "colon: # no comment", "line\nbreak", "{{ brace }}", "*é", "no"])
def test_values_reach_the_configuration_unchanged(value: str) -> None:
    config = yaml.safe_load(render_image_config(replace(PLAN, tags=(("k", value),), instance_type=value)))
    assert config["Build"]["InstanceType"] == value
    assert config["Image"]["Tags"][-1] == {"Key": "k", "Value": value}


def test_a_parent_is_known_by_id_and_not_by_name() -> None:
    named = replace(PLAN, parent_image=SOFTWARE.parent_image)
    assert PLAN.parent_is_known
    assert not named.parent_is_known
    assert named.with_parent("ami-0133f195033a4baae") == PLAN


def test_policies_are_those_of_the_regions_partition() -> None:
    for region, partition in (
        ("cn-north-1", "aws-cn"),
        ("us-gov-west-1", "aws-us-gov"),
        ("us-east-1", "aws"),
    ):
        build = yaml.safe_load(render_image_config(replace(PLAN, region=region)))["Build"]
        policy = build["Iam"]["AdditionalIamPolicies"][0]["Policy"]
        assert policy == f"arn:{partition}:iam::aws:policy/AmazonS3ReadOnlyAccess"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "pd-3.14.2"}, "image name 'pd-3.14.2'"),
        ({"name": "3pd"}, "image name '3pd'"),
        ({"name": "p" * (LONGEST_NAME + 1)}, "100 characters at most"),
        ({"component_url": "http://example.com/c.sh"}, "component_url is 'http://example.com/c.sh'"),
        ({"payload_url": "/tmp/payload.tar.gz"}, "payload_url is '/tmp/payload.tar.gz'"),
        ({"payload_url": "s3://b/a b"}, "payload_url"),
        ({"payload_sha256": "4F" * 32}, "payload_sha256"),
        ({"security_group_ids": ()}, "no security group"),
    ],
)
def test_wrong_values_are_refused_with_a_next_step(change: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        replace(PLAN, **change)  # type: ignore[arg-type]
    assert caught.value.next_step
