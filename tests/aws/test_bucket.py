"""The bucket against the stand-in's S3: whose it is, how it is made, what is sent to it."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest

from toolkit.errors import ToolkitError
from toolkit.remote.aws_bucket import bucket_state, ensure_bucket, present, upload
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


def test_a_new_bucket_is_closed_encrypted_versioned_and_tls_only() -> None:
    assert bucket_state(NEW, REGION) == "missing"
    assert ensure_bucket(NEW, REGION, {"project": "pd"})
    assert bucket_state(NEW, REGION) == "ours"
    s3 = client("s3", REGION)
    assert s3.get_bucket_location(Bucket=NEW)["LocationConstraint"] == REGION
    assert set(s3.get_public_access_block(Bucket=NEW)["PublicAccessBlockConfiguration"].values()) == {True}
    rules = s3.get_bucket_encryption(Bucket=NEW)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert s3.get_bucket_versioning(Bucket=NEW)["Status"] == "Enabled"
    tags = {tag["Key"]: tag["Value"] for tag in s3.get_bucket_tagging(Bucket=NEW)["TagSet"]}
    assert tags == {"project": "pd", "pd-toolkit:bucket": NEW}
    (statement,) = json.loads(s3.get_bucket_policy(Bucket=NEW)["Policy"])["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert statement["Resource"] == [f"arn:aws:s3:::{NEW}", f"arn:aws:s3:::{NEW}/*"]


def test_a_bucket_of_ours_is_left_as_it_is(cloud: Standin) -> None:
    assert not ensure_bucket(cloud.ids["bucket"], REGION, {})
    assert not cloud.creating_calls()


def test_the_first_region_is_made_without_a_location() -> None:
    assert ensure_bucket(NEW, "us-east-1", {})
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


def test_a_bucket_that_can_not_be_secured_is_taken_back() -> None:
    with pytest.raises(ToolkitError, match=f"making bucket {NEW}"):
        ensure_bucket(NEW, REGION, {"aws:reserved": "x"})
    assert bucket_state(NEW, REGION) == "missing"


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
