"""A finished node image in the stand-in's account, as `toolkit image build` leaves one, without a build."""

from __future__ import annotations

from typing import Any

from toolkit.plan.image import image_name
from toolkit.plan.image_tags import efa_release
from toolkit.plan.node_software import node_software
from toolkit.testing.aws.amis import PLAIN_UBUNTU_AMI


def seed_node_image(ec2: Any, version: str) -> str:
    """The id of an AMI with the tags that pcluster `version` gives one it built. `ec2`: boto3's client."""
    software = node_software()
    name = image_name(software, version)
    started = ec2.run_instances(ImageId=PLAIN_UBUNTU_AMI, InstanceType="g4dn.4xlarge", MinCount=1, MaxCount=1)
    instance = started["Instances"][0]["InstanceId"]
    # Not RegisterImage, which in moto forgets the architecture.
    ami = ec2.create_image(InstanceId=instance, Name=f"{name} 2026-01-01T00-00-00.000Z")["ImageId"]
    ec2.terminate_instances(InstanceIds=[instance])
    tags = {
        "version": version,
        "image_id": name,
        "build_status": "available",
        "os": "ubuntu2404",
        "parent_image": PLAIN_UBUNTU_AMI,
        "bootstrap_file": f"aws-parallelcluster-cookbook-{version}",
        "nvidia_version": software.nvidia_driver,
        "cuda_version": f"{software.cuda}.2",
        "efa_version": f"{efa_release(software.efa_module)}-1.amzn1",
        "kernel_version": software.kernel,
    }
    named = [{"Key": f"parallelcluster:{key}", "Value": value} for key, value in tags.items()]
    ec2.create_tags(Resources=[ami], Tags=named)
    return str(ami)
