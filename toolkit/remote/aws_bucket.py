"""The S3 bucket that nodes and image builds read from: made if missing, filled, asked what it holds.

Keys are content-addressed by the caller (a digest in the name), so an object that is there is never changed
under a node that reads it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from botocore.exceptions import ClientError

from toolkit.errors import ToolkitError
from toolkit.remote.aws_session import aws_errors, client

# elsewhere: this account's, but in another region.
BucketState = Literal["ours", "missing", "foreign", "elsewhere"]

NOT_THERE = {"404", "NoSuchBucket", "NoSuchKey", "NotFound"}
REFUSED = {"403", "AccessDenied", "Forbidden"}
# The one region that CreateBucket must not name.
FIRST_REGION = "us-east-1"


def bucket_state(name: str, region: str) -> BucketState:
    """Whose the bucket is. Raises ToolkitError if it is ours, but these credentials may not see it."""
    with aws_errors(f"looking at bucket {name}"):
        account = client("sts", region).get_caller_identity()["Account"]
        try:
            # Without the owner, a bucket of somebody else that is open to us would look like ours.
            answer = client("s3", region).head_bucket(Bucket=name, ExpectedBucketOwner=account)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in NOT_THERE:
                return "missing"
            if code in REFUSED:
                _refuse_if_own(name, region)
                return "foreign"
            if code in ("301", "PermanentRedirect"):
                return "elsewhere"
            raise
    # boto3 follows S3's redirect to the bucket's own region, so this is where another region shows.
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    found = answer.get("BucketRegion") or headers.get("x-amz-bucket-region") or region
    return "ours" if found == region else "elsewhere"


def ensure_bucket(name: str, region: str, tags: Mapping[str, str]) -> bool:
    """True if the bucket was made now: no public access, encrypted, versioned, reached over TLS only. One of
    ours that is there already is left as it is. Raises ToolkitError for somebody else's name and for one of
    another region."""
    state = bucket_state(name, region)
    if state == "ours":
        return False
    if state != "missing":
        raise unusable(name, region, state)
    s3 = client("s3", region)
    place: dict[str, Any] = (
        {} if region == FIRST_REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    )
    with aws_errors(f"making bucket {name}"):
        try:
            s3.create_bucket(Bucket=name, **place)
        except ClientError as error:
            if error.response["Error"]["Code"] == "BucketAlreadyExists":
                raise unusable(name, region, "foreign") from error
            raise
        try:
            _secure(s3, name, tags)
        except BaseException:
            # So that no half-secured bucket passes for a good one the next time.
            s3.delete_bucket(Bucket=name)
            raise
    return True


def unusable(name: str, region: str, state: BucketState) -> ToolkitError:
    """The error for a bucket that is there, but not for us."""
    if state == "foreign":
        return ToolkitError(
            f"bucket {name} (target.bucket) belongs to another AWS account: bucket names are shared by all.",
            next_step="choose another name for target.bucket, with your account's number in it",
        )
    return ToolkitError(
        f"bucket {name} (target.bucket) is in another region than {region}.",
        next_step="choose another name for target.bucket, with the region in it; it is made in the right one",
    )


def upload(bucket: str, region: str, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Puts each content under its key; returns the keys that were sent. An object with the same SHA-256 is
    skipped. Each one sent is looked at again; ToolkitError if S3 holds something else."""
    s3 = client("s3", region)
    sent = []
    for key, content in files.items():
        wanted = base64.b64encode(hashlib.sha256(content).digest()).decode()
        with aws_errors(f"uploading s3://{bucket}/{key}"):
            if _checksum(s3, bucket, key) == wanted:
                continue
            s3.put_object(
                Bucket=bucket, Key=key, Body=content, ChecksumAlgorithm="SHA256", ChecksumSHA256=wanted
            )
            found = _checksum(s3, bucket, key)
        if found != wanted:
            raise ToolkitError(
                f"s3://{bucket}/{key} was uploaded, but S3 has "
                + ("no SHA-256 of it." if found else "no such object."),
                next_step="see whether a rule of the bucket removes or replaces objects, then try again",
            )
        sent.append(key)
    return tuple(sent)


def present(bucket: str, region: str, keys: Iterable[str]) -> frozenset[str]:
    """Those of `keys` that the bucket holds; none if there is no such bucket."""
    s3 = client("s3", region)
    with aws_errors(f"looking into bucket {bucket}"):
        return frozenset(key for key in keys if _head(s3, bucket, key) is not None)


def _checksum(s3: Any, bucket: str, key: str) -> str | None:
    """SHA-256 as S3 tells it; empty for an object without one, None if there is no such object."""
    head = _head(s3, bucket, key)
    return None if head is None else str(head.get("ChecksumSHA256", ""))


def _head(s3: Any, bucket: str, key: str) -> Mapping[str, Any] | None:
    try:
        head: Mapping[str, Any] = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    except ClientError as error:
        if error.response["Error"]["Code"] in NOT_THERE:
            return None
        raise
    return head


def _refuse_if_own(name: str, region: str) -> None:
    """S3 answers 403 both for somebody else's bucket and for ours that we may not see; the list tells."""
    try:
        buckets = client("s3", region).list_buckets(Prefix=name)["Buckets"]
    except ClientError as error:
        if error.response["Error"]["Code"] not in REFUSED:
            raise
        raise ToolkitError(
            f"S3 refuses to show bucket {name} (target.bucket), and to list this account's buckets: it "
            "belongs to another account, or these credentials may not see it.",
            next_step="let an administrator allow s3:ListBucket on it, or choose another name",
        ) from error
    if any(bucket["Name"] == name for bucket in buckets):
        raise ToolkitError(
            f"bucket {name} (target.bucket) is this account's, but these credentials may not see into it.",
            next_step="let an administrator allow s3:ListBucket, s3:GetObject and s3:PutObject on it",
        )


def _secure(s3: Any, name: str, tags: Mapping[str, str]) -> None:
    closed = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=dict.fromkeys(closed, True))
    s3.put_bucket_encryption(
        Bucket=name,
        ServerSideEncryptionConfiguration={
            "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
        },
    )
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    s3.put_bucket_policy(Bucket=name, Policy=json.dumps(_tls_only(s3, name)))
    labels = {**tags, "pd-toolkit:bucket": name}
    s3.put_bucket_tagging(
        Bucket=name, Tagging={"TagSet": [{"Key": key, "Value": value} for key, value in labels.items()]}
    )


def _tls_only(s3: Any, name: str) -> Mapping[str, Any]:
    arn = f"arn:{s3.meta.partition}:s3:::{name}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "TlsOnly",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [arn, f"{arn}/*"],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }
