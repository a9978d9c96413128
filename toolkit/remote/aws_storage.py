"""What AWS says of file systems, buckets and scripts: FSx and S3, read only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from toolkit.plan.aws_facts import Answer, Bucket, FileSystem, Forbidden, Unknown
from toolkit.plan.cluster_document import bucket_and_key
from toolkit.remote.aws_answers import answer_of, filters
from toolkit.remote.aws_session import AwsAnswer, aws_errors, client

_MISSING = ("404", "NoSuchBucket", "NoSuchKey", "NotFound")
# 400 is none of these: S3 also answers it to a HEAD with worn-out credentials, without a word.
_ELSEWHERE = ("301", "PermanentRedirect", "AuthorizationHeaderMalformed")


class StorageReader:
    """`account`: the number of the account whose bucket ours must be."""

    def __init__(self, region: str, account: str, ec2: Any) -> None:
        self._region = region
        self._account = account
        self._ec2 = ec2

    def file_systems(self, wanted: Sequence[str]) -> dict[str, Answer[FileSystem]]:
        return {name: answer_of(partial(self._file_system, name)) for name in wanted}

    def _file_system(self, name: str) -> FileSystem | None:
        fsx = client("fsx", self._region)
        try:
            with aws_errors(f"reading {name}"):
                found = fsx.describe_file_systems(FileSystemIds=[name])["FileSystems"]
        except AwsAnswer as answer:
            if answer.code in ("FileSystemNotFound", "BadRequest"):
                return None
            raise
        if not found:
            return None
        system = found[0]
        return FileSystem(
            id=name,
            type=system["FileSystemType"],
            vpc=system.get("VpcId"),
            subnet=next(iter(system.get("SubnetIds", [])), ""),
            lifecycle=system.get("Lifecycle", ""),
            groups=self._groups_of(system.get("NetworkInterfaceIds", [])),
        )

    def _groups_of(self, interfaces: Sequence[str]) -> tuple[str, ...] | None:
        if not interfaces:
            return None
        with aws_errors("reading the file system's network interfaces"):
            wanted = filters({"network-interface-id": interfaces})
            found = self._ec2.describe_network_interfaces(**wanted)["NetworkInterfaces"]
        return tuple(sorted({group["GroupId"] for each in found for group in each.get("Groups", [])}))

    @staticmethod
    def subnets(systems: Mapping[str, Answer[FileSystem]]) -> list[str]:
        return [each.subnet for each in systems.values() if each and not isinstance(each, Unknown)]

    @staticmethod
    def groups(systems: Mapping[str, Answer[FileSystem]]) -> list[str]:
        """Security groups of all that could be read."""
        known = [each for each in systems.values() if each and not isinstance(each, Unknown)]
        return [group for each in known for group in each.groups or ()]

    def buckets(self, names: Iterable[str], *, ours: str | None) -> dict[str, Answer[Bucket | Forbidden]]:
        """`ours`: the bucket that must belong to this account."""
        return {name: answer_of(partial(self._bucket, name, mine=name == ours)) for name in names}

    def _bucket(self, name: str, *, mine: bool) -> Bucket | Forbidden | None:
        owner = {"ExpectedBucketOwner": self._account} if mine else {}
        try:
            with aws_errors(f"reading bucket {name}"):
                found = client("s3", self._region).head_bucket(Bucket=name, **owner)
        except AwsAnswer as answer:
            if answer.code in _MISSING:
                return None
            if answer.refused:
                return Forbidden(name)
            if answer.code in _ELSEWHERE:
                return Bucket(name, "another region")
            raise
        headers = found.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return Bucket(name, found.get("BucketRegion") or headers.get("x-amz-bucket-region"))

    def objects(self, urls: Iterable[str]) -> dict[str, Answer[bool | Forbidden]]:
        """Whether each s3:// address is there: True, None, or Forbidden."""
        return {url: answer_of(partial(self._object, url)) for url in urls if bucket_and_key(url)}

    def _object(self, url: str) -> bool | Forbidden | None:
        bucket, key = bucket_and_key(url) or ("", "")
        try:
            with aws_errors(f"reading {url}"):
                client("s3", self._region).head_object(Bucket=bucket, Key=key)
        except AwsAnswer as answer:
            if answer.code in _MISSING:
                return None
            if answer.refused:
                return Forbidden(url)
            raise
        return True
