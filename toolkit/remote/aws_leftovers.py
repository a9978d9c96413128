"""What a deleted cluster leaves in the account: found by its stack before, and by tag or name after.

Each kind is asked for by itself, and one that can't be read is told as unknown rather than left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.remote.aws_instances import CLUSTER_TAG
from toolkit.remote.aws_session import aws_errors, client
from toolkit.remote.aws_stack import StackResource

FSX_TYPE = "AWS::FSx::FileSystem"
LOG_GROUPS = "/aws/parallelcluster/"
# Made by pcluster's build-image, also by its dry run, once an account (pcluster/constants.py).
IMAGE_ROLES = "PClusterBuildImageCleanupRole"
ROLE_PATH = "/parallelcluster/"


@dataclass(frozen=True)
class Leftover:
    """`removal`: the command that removes it, or why it can't be told."""

    kind: str
    id: str
    removal: str


def file_systems(cluster: str, region: str, resources: Iterable[StackResource]) -> tuple[Leftover, ...]:
    """FSx file systems that the cluster's stack has or had."""
    ids = {each.physical_id for each in resources if each.kind == FSX_TYPE and each.physical_id}

    def read() -> Iterator[Leftover]:
        with aws_errors("reading the FSx file systems"):
            pages = client("fsx", region).get_paginator("describe_file_systems").paginate()
            found = [each for page in pages for each in page["FileSystems"]]
        tagged = {each["FileSystemId"] for each in found if _tags(each).get(CLUSTER_TAG) == cluster}
        for identity in sorted(ids | tagged):
            command = f"aws fsx delete-file-system --region {region} --file-system-id {identity}"
            yield Leftover("file system", identity, command)

    return _told("file system", read)


def log_groups(cluster: str, region: str) -> tuple[Leftover, ...]:
    """Log groups of every cluster that had this name."""
    pattern = re.compile(rf"{LOG_GROUPS}{re.escape(cluster)}-\d+")

    def read() -> Iterator[Leftover]:
        with aws_errors("reading the log groups"):
            pages = (
                client("logs", region)
                .get_paginator("describe_log_groups")
                .paginate(logGroupNamePrefix=f"{LOG_GROUPS}{cluster}-")
            )
            names = [each["logGroupName"] for page in pages for each in page["logGroups"]]
        for name in filter(pattern.fullmatch, names):
            command = f"aws logs delete-log-group --region {region} --log-group-name {name}"
            yield Leftover("log group", name, command)

    return _told("log group", read)


def image_roles(region: str) -> tuple[Leftover, ...]:
    """IAM roles that building images has left in the account."""

    def read() -> Iterator[Leftover]:
        with aws_errors("reading the IAM roles"):
            pages = client("iam", region).get_paginator("list_roles").paginate(PathPrefix=ROLE_PATH)
            names = [each["RoleName"] for page in pages for each in page["Roles"]]
        for name in names:
            if name.startswith(IMAGE_ROLES):
                removal = "free of charge; used by every image build of the account"
                yield Leftover("IAM role", name, removal)

    return _told("IAM role", read)


def reservation(identity: str, region: str) -> tuple[Leftover, ...]:
    """The capacity reservation, if it is still billed."""

    def read() -> Iterator[Leftover]:
        with aws_errors(f"reading capacity reservation {identity}"):
            ec2 = client("ec2", region)
            answer = ec2.describe_capacity_reservations(CapacityReservationIds=[identity])
        for each in answer["CapacityReservations"]:
            if each["State"] in ("active", "pending"):
                yield _still_billed(identity, region, each)

    return _told("capacity reservation", read, identity)


def _still_billed(identity: str, region: str, document: dict[str, Any]) -> Leftover:
    if document.get("ReservationType") == "capacity-block":
        return Leftover("capacity block", identity, "paid in advance; it ends by itself")
    command = f"aws ec2 cancel-capacity-reservation --region {region} --capacity-reservation-id {identity}"
    return Leftover("capacity reservation", identity, f"billed until it is cancelled: {command}")


def _told(
    kind: str, read: Callable[[], Iterator[Leftover]], identity: str = "unknown"
) -> tuple[Leftover, ...]:
    try:
        return tuple(read())
    except ToolkitError as error:
        return (Leftover(kind, identity, f"could not be read: {error.what}"),)


def _tags(document: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in document.get("Tags", ())}
