"""What EC2 and CloudWatch say around an image build: parents, places, users of an AMI, log lines.

Nothing here creates or changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from toolkit.remote.aws_session import aws_errors, client

IMAGE_TAG = "parallelcluster:image_id"
CLUSTER_TAG = "parallelcluster:cluster-name"


@dataclass(frozen=True)
class LogLine:
    """`time`: milliseconds since 1970, as CloudWatch has it."""

    time: int
    text: str


def official_ami(name: str, region: str) -> str | None:
    """Id of Amazon's AMI of that name, in the region; None if it has none. Also a deprecated one, since the
    published environment was built on it."""
    with aws_errors(f"looking for AMI {name}"):
        found = client("ec2", region).describe_images(
            Owners=["amazon"], Filters=[{"Name": "name", "Values": [name]}], IncludeDeprecated=True
        )["Images"]
    return next((str(image["ImageId"]) for image in found if image.get("State") == "available"), None)


def zones_offering(instance_type: str, region: str) -> frozenset[str]:
    """The availability zones in which EC2 offers the type."""
    with aws_errors(f"asking whether {instance_type} is offered"):
        offered = client("ec2", region).describe_instance_type_offerings(
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [instance_type]}],
        )["InstanceTypeOfferings"]
    return frozenset(each["Location"] for each in offered)


def zone_of(subnet: str, region: str) -> str:
    with aws_errors(f"reading {subnet}"):
        found = client("ec2", region).describe_subnets(SubnetIds=[subnet])["Subnets"]
    return str(found[0]["AvailabilityZone"])


def has_default_vpc(region: str) -> bool:
    with aws_errors("looking for the default VPC"):
        found = client("ec2", region).describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])[
            "Vpcs"
        ]
    return bool(found)


def ami_users(ami: str, region: str) -> tuple[str, ...]:
    """Instances that run from the AMI, each with its cluster where it has one. The head node of a
    ParallelCluster runs from its AMI as long as the cluster exists."""
    pages = client("ec2", region).get_paginator("describe_instances")
    with aws_errors(f"looking for instances of {ami}"):
        instances = [
            instance
            for page in pages.paginate(Filters=[{"Name": "image-id", "Values": [ami]}])
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
            if instance["State"]["Name"] not in ("terminated", "shutting-down")
        ]
    return tuple(_user(instance) for instance in instances)


def image_tags(region: str) -> dict[str, Mapping[str, str]]:
    """Tags of this account's AMIs that ParallelCluster built, by image id."""
    pages = client("ec2", region).get_paginator("describe_images")
    found: dict[str, Mapping[str, str]] = {}
    with aws_errors("listing this account's AMIs"):
        for page in pages.paginate(Owners=["self"], Filters=[{"Name": "tag-key", "Values": [IMAGE_TAG]}]):
            for image in page["Images"]:
                tags = _tags(image)
                found[tags[IMAGE_TAG]] = {**tags, "ami": image["ImageId"]}
    return found


def log_group(image: str) -> str:
    """Where Image Builder writes; the name is pcluster's (models/imagebuilder.py, _log_group_name)."""
    return f"/aws/imagebuilder/ParallelClusterImage-{image}"


def log_lines(image: str, region: str, since: int = 0) -> tuple[LogLine, ...]:
    """Lines of the build's log after `since` (milliseconds), oldest first; none while there is no log."""
    pages = client("logs", region).get_paginator("filter_log_events")
    with aws_errors(f"reading the log of image {image}"):
        try:
            events = [
                event
                for page in pages.paginate(logGroupName=log_group(image), startTime=since + 1)
                for event in page["events"]
            ]
        except ClientError as error:
            if error.response["Error"]["Code"] == "ResourceNotFoundException":
                return ()
            raise
    lines = [LogLine(event["timestamp"], event["message"].rstrip()) for event in events]
    return tuple(sorted(lines, key=lambda line: line.time))


def _user(instance: Mapping[str, Any]) -> str:
    cluster = _tags(instance).get(CLUSTER_TAG)
    told = f"{instance['InstanceId']} ({instance['State']['Name']})"
    return f"{told} of cluster {cluster}" if cluster else told


def _tags(thing: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in thing.get("Tags", ())}
