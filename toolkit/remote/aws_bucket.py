"""The S3 bucket that nodes and image builds read from: made if missing, filled, asked what it holds.

Keys are content-addressed by the caller (a digest in the name), so an object that is there is never changed
under a node that reads it, and the bucket needs no versions: `aws s3 rb --force` removes it whole.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from botocore.exceptions import ClientError

from toolkit.errors import ToolkitError
from toolkit.plan.bucket_policy import denies_sse_s3
from toolkit.remote.aws_session import aws_errors, client

# elsewhere: this account's, but in another region.
BucketState = Literal["ours", "missing", "foreign", "elsewhere"]
# secured: it was there, but unfinished; empty: nothing was to be done.
BucketWork = Literal["made", "secured", ""]

NOT_THERE = {"404", "NoSuchBucket", "NoSuchKey", "NotFound"}
REFUSED = {"403", "AccessDenied", "Forbidden"}
# The one region that CreateBucket must not name.
FIRST_REGION = "us-east-1"
# On a bucket that the toolkit made, before anything else is done to it.
TAG = "pd-toolkit:bucket"
# S3's own key. Objects under a customer's KMS key can't be read by nodes, which have no kms:Decrypt.
ENCRYPTION = "AES256"


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


def usable_bucket(name: str, region: str) -> BucketState:
    """ours or missing. Raises ToolkitError for somebody else's name, for one of another region, and where a
    policy refuses objects that nodes could read. Makes nothing."""
    state = bucket_state(name, region)
    if state in ("foreign", "elsewhere"):
        raise unusable(name, region, state)
    if state == "ours":
        _refuse_if_kms_only(name, region)
    return state


def ensure_bucket(name: str, region: str, tags: Mapping[str, str]) -> BucketWork:
    """The bucket, made if it is missing: no public access, encrypted, reached over TLS only.

    One that the toolkit made gets whatever of that it lacks, since a run may end at any line; another of ours
    is left as it is. ToolkitError as `usable_bucket` has it.
    """
    missing = usable_bucket(name, region) == "missing"
    s3 = client("s3", region)
    if missing:
        _create(s3, name, region)
    with aws_errors(f"securing bucket {name}, which the next run takes up again"):
        secured = _secure(s3, name, tags)
    return "made" if missing else "secured" if secured else ""


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
    """Puts each content under its key, encrypted with S3's own key whatever the bucket's default; returns the
    keys that were sent. An object that is there so is skipped. Each one sent is looked at again; ToolkitError
    if S3 holds something else."""
    s3 = client("s3", region)
    sent = []
    for key, content in files.items():
        wanted = base64.b64encode(hashlib.sha256(content).digest()).decode()
        with aws_errors(f"uploading s3://{bucket}/{key}"):
            if _fault(_head(s3, bucket, key), wanted) is None:
                continue
            s3.put_object(
                Bucket=bucket,
                Key=key,
                Body=content,
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=wanted,
                ServerSideEncryption=ENCRYPTION,
            )
            fault = _fault(_head(s3, bucket, key), wanted)
        if fault:
            raise ToolkitError(
                f"s3://{bucket}/{key} was uploaded, but S3 has {fault}.",
                next_step="see whether a rule of the bucket removes, replaces or encrypts objects, then try "
                "again",
            )
        sent.append(key)
    return tuple(sent)


def present(bucket: str, region: str, keys: Iterable[str]) -> frozenset[str]:
    """Those of `keys` that the bucket holds; none if there is no such bucket."""
    s3 = client("s3", region)
    with aws_errors(f"looking into bucket {bucket}"):
        return frozenset(key for key in keys if _head(s3, bucket, key) is not None)


def _fault(head: Mapping[str, Any] | None, sha256: str) -> str | None:
    """What an object is instead of what we send; None if it is that."""
    if head is None:
        return "no such object"
    if head.get("ChecksumSHA256") != sha256:
        return "another content, or no SHA-256 of it"
    found = head.get("ServerSideEncryption")
    return None if found == ENCRYPTION else f"it encrypted with {found or 'nothing'}, which nodes can't read"


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


def _refuse_if_kms_only(name: str, region: str) -> None:
    """As far as these credentials may read the policy; the upload meets one that they may not."""
    with aws_errors(f"reading the policy of bucket {name}"):
        try:
            policy = json.loads(client("s3", region).get_bucket_policy(Bucket=name)["Policy"])
        except ClientError as error:
            if error.response["Error"]["Code"] in (*NOT_THERE, *REFUSED, "NoSuchBucketPolicy"):
                return
            raise
    statement = denies_sse_s3(policy, name)
    if statement:
        raise ToolkitError(
            f"the policy of bucket {name} (target.bucket), statement {statement}, refuses objects encrypted "
            "with S3's own key (AES256); nodes have no right to a KMS key, so they could not read others.",
            next_step="name another bucket in target.bucket; one that does not exist is made",
        )


def _create(s3: Any, name: str, region: str) -> None:
    place: dict[str, Any] = (
        {} if region == FIRST_REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    )
    with aws_errors(f"making bucket {name}"):
        try:
            s3.create_bucket(Bucket=name, **place)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "BucketAlreadyExists":
                raise unusable(name, region, "foreign") from error
            # Another run of ours was faster; us-east-1 does not even say so, so nothing here deletes.
            if code != "BucketAlreadyOwnedByYou":
                raise


def _secure(s3: Any, name: str, tags: Mapping[str, str]) -> bool:
    """Adds what a bucket of the toolkit's lacks; False if it lacks nothing or is not the toolkit's."""
    labels = _labels(s3, name)
    unlabelled = labels == {} and _is_untouched(s3, name)
    if not unlabelled and (labels is None or TAG not in labels):
        return False
    if unlabelled:
        given = {**tags, TAG: name}
        s3.put_bucket_tagging(
            Bucket=name, Tagging={"TagSet": [{"Key": key, "Value": value} for key, value in given.items()]}
        )
    lacking = [each for each in _protections(s3, name) if _lacks(each[0], name, each[1])]
    for _, _, put, arguments in lacking:
        put(Bucket=name, **arguments)
    return unlabelled or bool(lacking)


Protection = tuple[Callable[..., Any], str, Callable[..., Any], dict[str, Any]]


def _protections(s3: Any, name: str) -> tuple[Protection, ...]:
    """(what reads it, S3's code where there is none, what writes it, what is written)"""
    closed = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": ENCRYPTION}}
    return (
        (
            s3.get_public_access_block,
            "NoSuchPublicAccessBlockConfiguration",
            s3.put_public_access_block,
            {"PublicAccessBlockConfiguration": dict.fromkeys(closed, True)},
        ),
        (
            s3.get_bucket_encryption,
            "ServerSideEncryptionConfigurationNotFoundError",
            s3.put_bucket_encryption,
            {"ServerSideEncryptionConfiguration": {"Rules": [rule]}},
        ),
        (
            s3.get_bucket_policy,
            "NoSuchBucketPolicy",
            s3.put_bucket_policy,
            {"Policy": json.dumps(_tls_only(s3, name))},
        ),
    )


def _lacks(read: Callable[..., Any], name: str, code: str) -> bool:
    """False also where these credentials may not look."""
    try:
        read(Bucket=name)
    except ClientError as error:
        if error.response["Error"]["Code"] not in (code, *REFUSED):
            raise
        return bool(error.response["Error"]["Code"] == code)
    return False


def _labels(s3: Any, name: str) -> dict[str, str] | None:
    """The bucket's tags; None if these credentials may not see them."""
    try:
        tags = s3.get_bucket_tagging(Bucket=name)["TagSet"]
    except ClientError as error:
        if error.response["Error"]["Code"] in REFUSED:
            return None
        if error.response["Error"]["Code"] != "NoSuchTagSet":
            raise
        tags = ()
    return {tag["Key"]: tag["Value"] for tag in tags}


def _is_untouched(s3: Any, name: str) -> bool:
    """As CreateBucket leaves one: a run of ours may have been killed before it could set its tag."""
    return _lacks(s3.get_bucket_policy, name, "NoSuchBucketPolicy") and not s3.list_objects_v2(
        Bucket=name, MaxKeys=1
    ).get("Contents")


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
