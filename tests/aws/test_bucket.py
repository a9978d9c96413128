"""The bucket against the stand-in's S3: whose it is, how it is made, what is sent to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from toolkit.errors import ToolkitError
from toolkit.remote.aws_bucket import TAG, bucket_state, ensure_bucket, present, upload, usable_bucket
from toolkit.remote.aws_session import client
from toolkit.testing.aws import Standin

pytestmark = [pytest.mark.aws, pytest.mark.usefixtures("cloud")]

REGION = "ap-south-1"
NEW = "pd-new-bucket"


@pytest.fixture
def cloud(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    for name, value in standin.environment.items():
        monkeypatch.setenv(name, value)
    standin.forget_calls()
    return standin


@pytest.fixture
def stranger(cloud: Standin) -> Any:
    """S3 as another account sees it."""
    role = "arn:aws:iam::222222222222:role/anybody"
    given = client("sts", REGION).assume_role(RoleArn=role, RoleSessionName="stranger")["Credentials"]
    return boto3.client(
        "s3",
        region_name=REGION,
        endpoint_url=cloud.url,
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"],
        aws_session_token=given["SessionToken"],
    )


def test_a_new_bucket_is_closed_encrypted_and_tls_only() -> None:
    assert bucket_state(NEW, REGION) == "missing"
    assert ensure_bucket(NEW, REGION, {"project": "pd"}) == "made"
    assert bucket_state(NEW, REGION) == "ours"
    assert_secure(client("s3", REGION))
    assert ensure_bucket(NEW, REGION, {"project": "pd"}) == ""


def assert_secure(s3: Any) -> None:
    assert s3.get_bucket_location(Bucket=NEW)["LocationConstraint"] == REGION
    assert set(s3.get_public_access_block(Bucket=NEW)["PublicAccessBlockConfiguration"].values()) == {True}
    rules = s3.get_bucket_encryption(Bucket=NEW)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    # `aws s3 rb --force`, which we tell to remove it with, leaves the versions of a versioned bucket.
    assert "Status" not in s3.get_bucket_versioning(Bucket=NEW)
    tags = {tag["Key"]: tag["Value"] for tag in s3.get_bucket_tagging(Bucket=NEW)["TagSet"]}
    assert tags == {"project": "pd", "pd-toolkit:bucket": NEW}
    (statement,) = json.loads(s3.get_bucket_policy(Bucket=NEW)["Policy"])["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert statement["Resource"] == [f"arn:aws:s3:::{NEW}", f"arn:aws:s3:::{NEW}/*"]


def test_a_bucket_of_ours_is_left_as_it_is(cloud: Standin) -> None:
    assert ensure_bucket(cloud.ids["bucket"], REGION, {}) == ""
    assert not cloud.creating_calls()


def test_the_first_region_is_made_without_a_location() -> None:
    assert ensure_bucket(NEW, "us-east-1", {}) == "made"
    assert bucket_state(NEW, "us-east-1") == "ours"


def test_somebody_elses_name_is_told(cloud: Standin, stranger: Any) -> None:
    stranger.create_bucket(Bucket=NEW, CreateBucketConfiguration={"LocationConstraint": REGION})
    cloud.forget_calls()
    assert bucket_state(NEW, REGION) == "foreign"
    with pytest.raises(ToolkitError, match="another AWS account") as told:
        ensure_bucket(NEW, REGION, {})
    assert "target.bucket" in told.value.next_step
    assert not cloud.creating_calls()


def test_another_regions_bucket_is_told(cloud: Standin) -> None:
    assert bucket_state(cloud.ids["bucket"], "eu-west-1") == "elsewhere"
    with pytest.raises(ToolkitError, match="in another region than eu-west-1"):
        ensure_bucket(cloud.ids["bucket"], "eu-west-1", {})
    assert not cloud.creating_calls()


TAGS = {"TagSet": [{"Key": "project", "Value": "pd"}, {"Key": TAG, "Value": NEW}]}
CLOSED = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
AES256 = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
# What `ensure_bucket` has done before it does the last thing, in its order.
DONE: tuple[Callable[[Any], Any], ...] = (
    lambda s3: s3.put_bucket_tagging(Bucket=NEW, Tagging=TAGS),
    lambda s3: s3.put_public_access_block(
        Bucket=NEW, PublicAccessBlockConfiguration=dict.fromkeys(CLOSED, True)
    ),
    lambda s3: s3.put_bucket_encryption(Bucket=NEW, ServerSideEncryptionConfiguration=AES256),
)


@pytest.mark.parametrize("done", range(len(DONE) + 1))
def test_a_bucket_of_a_run_that_was_killed_is_finished_by_the_next(done: int) -> None:
    s3 = client("s3", REGION)
    s3.create_bucket(Bucket=NEW, CreateBucketConfiguration={"LocationConstraint": REGION})
    for each in DONE[:done]:
        each(s3)
    assert ensure_bucket(NEW, REGION, {"project": "pd"}) == "secured"
    assert_secure(s3)
    assert ensure_bucket(NEW, REGION, {"project": "pd"}) == ""


@pytest.mark.parametrize("region", [REGION, "us-east-1"])
def test_a_bucket_that_can_not_be_secured_stays_and_is_finished_by_the_next(region: str) -> None:
    with pytest.raises(ToolkitError, match=f"securing bucket {NEW}"):
        ensure_bucket(NEW, region, {"aws:reserved": "x"})
    assert bucket_state(NEW, region) == "ours"
    assert ensure_bucket(NEW, region, {}) == "secured"


def test_what_the_owner_changed_on_a_bucket_of_the_toolkit_stays(cloud: Standin) -> None:
    ensure_bucket(NEW, REGION, {})
    client("s3", REGION).put_bucket_encryption(Bucket=NEW, ServerSideEncryptionConfiguration=KMS)
    cloud.forget_calls()
    assert ensure_bucket(NEW, REGION, {}) == ""
    assert not cloud.creating_calls()


KMS_KEY = "arn:aws:kms:ap-south-1:123456789012:key/00000000-0000-4000-8000-000000000000"
KMS = {
    "Rules": [
        {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KMS_KEY}},
    ]
}


def test_objects_are_readable_without_a_kms_key_whatever_the_default(cloud: Standin) -> None:
    s3, bucket = client("s3", REGION), cloud.ids["bucket"]
    s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration=KMS)
    s3.put_object(Bucket=bucket, Key="images/old", Body=b"one", ChecksumAlgorithm="SHA256")
    assert s3.head_object(Bucket=bucket, Key="images/old")["ServerSideEncryption"] == "aws:kms"
    files = {"images/new": b"two", "images/old": b"one"}
    assert upload(bucket, REGION, files) == ("images/new", "images/old")
    for key in files:
        head = s3.head_object(Bucket=bucket, Key=key)
        assert head["ServerSideEncryption"] == "AES256"
        assert "SSEKMSKeyId" not in head
    assert upload(bucket, REGION, files) == ()


def test_a_bucket_that_takes_kms_objects_only_is_refused_before_anything_is_made(cloud: Standin) -> None:
    bucket = cloud.ids["bucket"]
    statement = {
        "Sid": "KmsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:PutObject",
        "Resource": f"arn:aws:s3:::{bucket}/*",
        "Condition": {"StringNotEquals": {"s3:x-amz-server-side-encryption": "aws:kms"}},
    }
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    client("s3", REGION).put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    cloud.forget_calls()
    for use in (lambda: usable_bucket(bucket, REGION), lambda: ensure_bucket(bucket, REGION, {})):
        with pytest.raises(ToolkitError, match="statement KmsOnly, refuses objects") as told:
            use()
        assert "target.bucket" in told.value.next_step
    assert not cloud.creating_calls()


def test_equal_objects_are_not_sent_again(cloud: Standin) -> None:
    bucket = cloud.ids["bucket"]
    files = {"images/a": b"one", "images/b": b"two"}
    assert upload(bucket, REGION, files) == ("images/a", "images/b")
    assert upload(bucket, REGION, files) == ()
    assert upload(bucket, REGION, {**files, "images/b": b"other"}) == ("images/b",)
    assert client("s3", REGION).get_object(Bucket=bucket, Key="images/b")["Body"].read() == b"other"


def test_present_tells_which_keys_are_there(cloud: Standin) -> None:
    bucket = cloud.ids["bucket"]
    assert present(bucket, REGION, ["bootstrap/verify.sh", "bootstrap/none.sh"]) == {"bootstrap/verify.sh"}
    assert present("pd-no-such-bucket", REGION, ["a"]) == frozenset()
