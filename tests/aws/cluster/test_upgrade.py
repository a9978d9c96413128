"""Another image for a cluster that runs: its queues' nodes get it, the head node keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolkit.testing.aws.node_image import seed_node_image

pytestmark = [pytest.mark.aws, pytest.mark.slow]


def template_images(ec2: Any) -> dict[str, str]:
    """AMI by launch template, of the newest version of each."""
    found = {}
    for template in ec2.describe_launch_templates()["LaunchTemplates"]:
        versions = ec2.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])
        newest = max(versions["LaunchTemplateVersions"], key=lambda each: each["VersionNumber"])
        found[template["LaunchTemplateName"]] = newest["LaunchTemplateData"]["ImageId"]
    return found


@pytest.mark.parametrize("version", ["3.14.2", "3.16.1"])
def test_a_new_image_reaches_the_queues_without_stopping_the_fleet(
    version: str, fresh: Callable[..., Any]
) -> None:
    toolkit = fresh(version)
    ec2 = toolkit.client("ec2")
    toolkit("create", "--yes")
    before = template_images(ec2)
    assert len(set(before.values())) == 1

    newer = toolkit.having(f"target.image.ami={seed_node_image(ec2, version)}")
    done = newer("update", "--yes")
    assert "Image.CustomAmi" in done.stderr
    after = template_images(ec2)
    changed = {name for name, image in after.items() if image != before.get(name)}
    assert {name.rsplit("-", 2)[-2] for name in changed} == {"gpu", "router"}
    assert newer("diff").stdout == ""
    toolkit.standin.reset()
