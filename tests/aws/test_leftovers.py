"""What a cluster leaves: no command removes more than is the toolkit's, and nothing known is left out."""

from __future__ import annotations

import pytest

from toolkit.remote.aws_bucket import ensure_bucket
from toolkit.remote.aws_leftovers import FSX_TYPE, GROUP_TYPE, bucket, file_systems, security_groups
from toolkit.remote.aws_session import client
from toolkit.remote.aws_stack import StackResource
from toolkit.testing.aws import Standin

pytestmark = pytest.mark.aws

REGION = "ap-south-1"


@pytest.fixture
def cloud(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    for name, value in standin.environment.items():
        monkeypatch.setenv(name, value)
    return standin


def resource(kind: str, identity: str, *, retained: bool = False) -> StackResource:
    return StackResource(identity, kind, identity, "CREATE_COMPLETE", "", retained)


def test_only_a_bucket_that_the_toolkit_made_is_removed_whole(cloud: Standin) -> None:
    ensure_bucket("pd-mine-123456789012", REGION, {})
    assert (
        "aws s3 rb --force s3://pd-mine-123456789012" in bucket("pd-mine-123456789012", "pd", REGION).removal
    )
    theirs = cloud.ids["bucket"]
    removal = bucket(theirs, "pd", REGION).removal
    assert removal.endswith(f"aws s3 rm --recursive s3://{theirs}/pd/")
    assert "rb" not in removal.split()


def test_a_file_system_that_the_stack_names_is_told_though_fsx_can_t_be_read(
    cloud: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = cloud.ids["filesystem"]
    stack = [resource(FSX_TYPE, known, retained=True)]
    assert [each.id for each in file_systems("pd", REGION, stack)] == [known]
    monkeypatch.setenv("AWS_ENDPOINT_URL_FSX", "http://127.0.0.1:9")
    told = file_systems("pd", REGION, stack)
    assert [each.id for each in told] == [known, "unknown"]
    assert f"--file-system-id {known}" in told[0].removal
    assert "could not be read" in told[1].removal


def test_groups_that_outlive_the_cluster_are_told_and_those_that_go_are_not(cloud: Standin) -> None:
    going, staying = cloud.ids["sg_efa"], cloud.ids["sg_lustre"]
    tag = {"Key": "parallelcluster:cluster-name", "Value": "pd"}
    client("ec2", REGION).create_tags(Resources=[going, staying], Tags=[tag])
    stack = [resource(GROUP_TYPE, going), resource(GROUP_TYPE, staying, retained=True)]
    (left,) = security_groups("pd", REGION, stack)
    assert (left.id, left.vpc) == (staying, cloud.ids["vpc"])
    assert len(security_groups("pd", REGION, ())) == 2
