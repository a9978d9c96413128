"""What a deleted cluster leaves in the account: found by its stack before, and by tag or name after.

Each kind is asked for by itself, and one that can't be read is told as unknown rather than left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from toolkit.errors import ToolkitError
from toolkit.remote import aws_bucket
from toolkit.remote.aws_instances import CLUSTER_TAG
from toolkit.remote.aws_session import aws_errors, client
from toolkit.remote.aws_stack import StackResource

FSX_TYPE, GROUP_TYPE = "AWS::FSx::FileSystem", "AWS::EC2::SecurityGroup"
LOG_GROUPS = "/aws/parallelcluster/"
# Made by pcluster's build-image, also by its dry run, once an account (pcluster/constants.py).
IMAGE_ROLES = "PClusterBuildImageCleanupRole"
ROLE_PATH = "/parallelcluster/"


@dataclass(frozen=True)
class Leftover:
    """`removal`: the command that removes it, or why it can't be told. `vpc`: where it lies, if in one."""

    kind: str
    id: str
    removal: str
    vpc: str = ""


def file_systems(cluster: str, region: str, resources: Iterable[StackResource]) -> tuple[Leftover, ...]:
    """FSx file systems that the cluster's stack has or had. Where FSx can't be read, those that the stack
    names are told all the same."""
    ids = {each.physical_id for each in resources if each.kind == FSX_TYPE and each.physical_id}
    try:
        with aws_errors("reading the FSx file systems"):
            pages = client("fsx", region).get_paginator("describe_file_systems").paginate()
            found = {each["FileSystemId"]: each for page in pages for each in page["FileSystems"]}
    except ToolkitError as error:
        known = (Leftover("file system", each, _remove_file_system(each, region)) for each in sorted(ids))
        return (*known, Leftover("file system", "unknown", f"others could not be read: {error.what}"))
    return tuple(
        Leftover(
            "file system",
            identity,
            "is being deleted; billed until then"
            if each.get("Lifecycle") == "DELETING"
            else _remove_file_system(identity, region),
            each.get("VpcId", ""),
        )
        for identity, each in sorted(found.items())
        if identity in ids or _tags(each).get(CLUSTER_TAG) == cluster
    )


def _remove_file_system(identity: str, region: str) -> str:
    command = f"aws fsx delete-file-system --region {region} --file-system-id {identity}"
    return f"billed until you delete it: {command}"


def security_groups(cluster: str, region: str, resources: Iterable[StackResource]) -> tuple[Leftover, ...]:
    """Those that outlive the cluster: the file system's, which CloudFormation keeps along with it."""
    groups = [each for each in resources if each.kind == GROUP_TYPE]
    kept = {each.physical_id for each in groups if each.retained}
    going = {each.physical_id for each in groups} - kept

    def read() -> Iterator[Leftover]:
        wanted = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]
        with aws_errors("reading the security groups"):
            pages = client("ec2", region).get_paginator("describe_security_groups").paginate(Filters=wanted)
            found = [each for page in pages for each in page["SecurityGroups"]]
        for each in found:
            if each["GroupId"] not in going:
                command = f"aws ec2 delete-security-group --region {region} --group-id {each['GroupId']}"
                told = f"free of charge; once its file system is gone: {command}"
                yield Leftover("security group", each["GroupId"], told, each.get("VpcId", ""))

    return _told("security group", read)


def bucket(name: str, prefix: str, region: str) -> Leftover:
    """The deployment's bucket: removed whole only if the toolkit made it; else what lies under `prefix`."""
    s3 = client("s3", region)
    with aws_errors(f"reading the tags of bucket {name}"):
        try:
            tags = {each["Key"] for each in s3.get_bucket_tagging(Bucket=name)["TagSet"]}
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchTagSet":
                raise
            tags = set()
    if aws_bucket.TAG in tags:
        command = f"aws s3 rb --force s3://{name}"
        return Leftover("bucket", name, command)
    command = f"the toolkit did not make it; only ours in it: aws s3 rm --recursive s3://{name}/{prefix}/"
    return Leftover("bucket", name, command)


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
