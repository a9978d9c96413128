"""The machine images that the stand-in's account can see, in the form in which moto takes them."""

from __future__ import annotations

from typing import Any

import yaml

from toolkit.data import shipped

OFFICIAL_OWNER, CANONICAL_OWNER = "247102896272", "099720109477"
OFFICIAL_AMI = "ami-0133f195033a4baae"  # 3.14.2 for Ubuntu 24.04 in ap-south-1, as published
OFFICIAL_AMI_3_16_1 = "ami-0d3f0a9b6c2e41575"
PLAIN_UBUNTU_AMI = "ami-0aaaaaaaaaaaaaaaa"
OTHER_VERSION_AMI = "ami-0bbbbbbbbbbbbbbbb"


def catalogue() -> list[dict[str, Any]]:
    official = yaml.safe_load(shipped("ami-setup", "versions.yaml").read_text())["parent_image"]
    return [
        _ami(OFFICIAL_AMI, official, OFFICIAL_OWNER),
        _ami("ami-0d3f0a9b6c2e41420", official.replace("ubuntu-2404", "ubuntu-2204"), OFFICIAL_OWNER),
        _ami(
            OFFICIAL_AMI_3_16_1,
            "aws-parallelcluster-3.16.1-ubuntu-2404-lts-hvm-x86_64-202609011200",
            OFFICIAL_OWNER,
        ),
        _ami(
            PLAIN_UBUNTU_AMI,
            "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260101",
            CANONICAL_OWNER,
        ),
        _ami(OTHER_VERSION_AMI, "pd-node-of-another-version", OFFICIAL_OWNER),
    ]


def _ami(ami_id: str, name: str, owner: str) -> dict[str, Any]:
    return {
        "ami_id": ami_id,
        "name": name,
        "description": name,
        "image_location": f"amazon/{name}",
        "owner_id": owner,
        "owner_alias": "amazon",
        "state": "available",
        "public": True,
        "architecture": "x86_64",
        "image_type": "machine",
        "platform": None,
        "virtualization_type": "hvm",
        "hypervisor": "xen",
        "root_device_name": "/dev/sda1",
        "root_device_type": "ebs",
        "sriov": "simple",
        "creation_date": "2026-02-12T17:13:00.000Z",
    }
