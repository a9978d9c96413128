"""Names that stacks give: one that exists fails the stack as in AWS, and two clusters may share a minute."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from toolkit.remote.pcluster import Pcluster
from toolkit.remote.pcluster_env import PclusterEnv
from toolkit.remote.pcluster_failure import classify
from toolkit.testing.aws import Standin

pytestmark = pytest.mark.aws

FIXED = "/pd/fixed"
OF_A_MINUTE = "/aws/parallelcluster/pd-202601010000"
BEFORE, LONG_BEFORE = "/aws/parallelcluster/pd-202512312359", "/aws/parallelcluster/pd-202512312358"
# pcluster, to which it is always the first minute of 2026.
STOPPED = """#!{folder}/bin/python
import sys
from datetime import datetime

import pcluster.templates.cluster_stack as cluster_stack
from pcluster.cli.entrypoint import main


class Stopped(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 1, tzinfo=tz)


cluster_stack.datetime = Stopped
sys.exit(main())
"""
GROUP, TABLE, ROLE = "AWS::Logs::LogGroup", "AWS::DynamoDB::Table", "AWS::IAM::Role"


@pytest.fixture
def in_one_minute(
    standin: Standin, pcluster_env: Callable[[str], PclusterEnv], tmp_path: Path
) -> Callable[[str], Pcluster]:
    def get(version: str) -> Pcluster:
        env = pcluster_env(version)
        script = tmp_path / "pcluster"
        script.write_text(STOPPED.format(folder=env.folder))
        script.chmod(0o755)
        return Pcluster(replace(env, executable=script), "ap-south-1", environment=standin.environment)

    return get


@pytest.fixture
def config(cluster_config: Callable[..., str]) -> str:
    return cluster_config(nodes=1)


def client(standin: Standin, service: str) -> Any:
    return boto3.client(
        service,
        region_name="ap-south-1",
        endpoint_url=standin.url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def log_group(name: str) -> dict[str, Any]:
    """Retained, as ParallelCluster has it."""
    return {"Type": GROUP, "DeletionPolicy": "Retain", "Properties": {"LogGroupName": name}}


def table(name: str) -> dict[str, Any]:
    return {
        "Type": TABLE,
        "Properties": {
            "TableName": name,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": "Id", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "Id", "KeyType": "HASH"}],
        },
    }


def role(name: str) -> dict[str, Any]:
    policy = {"Version": "2012-10-17", "Statement": []}
    return {"Type": ROLE, "Properties": {"RoleName": name, "AssumeRolePolicyDocument": policy}}


def make(standin: Standin, name: str, resources: dict[str, Any], *, keep: bool = False) -> str:
    """The new stack's id."""
    template = json.dumps({"Resources": resources})
    made = client(standin, "cloudformation").create_stack(
        StackName=name, TemplateBody=template, DisableRollback=keep
    )
    return str(made["StackId"])


def status(standin: Standin, stack: str) -> str:
    (found,) = client(standin, "cloudformation").describe_stacks(StackName=stack)["Stacks"]
    return str(found["StackStatus"])


def failed(standin: Standin, stack: str) -> list[tuple[str, str]]:
    """Each failed resource and its reason."""
    events = client(standin, "cloudformation").describe_stack_events(StackName=stack)["StackEvents"]
    return [
        (each["LogicalResourceId"], each["ResourceStatusReason"])
        for each in events
        if each["ResourceStatus"] == "CREATE_FAILED" and each["PhysicalResourceId"] != stack
    ]


def remove(standin: Standin, stack: str) -> None:
    client(standin, "cloudformation").delete_stack(StackName=stack)
    assert status(standin, stack) == "DELETE_COMPLETE"


def groups(standin: Standin, prefix: str = "/") -> list[str]:
    found = client(standin, "logs").describe_log_groups(logGroupNamePrefix=prefix)["logGroups"]
    return [each["logGroupName"] for each in found]


def tables(standin: Standin) -> list[str]:
    return list(client(standin, "dynamodb").list_tables()["TableNames"])


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        (log_group(FIXED), "log group already exists"),
        (table("fixed"), "Table already exists: fixed"),
        (role("fixed"), "Role with name fixed already exists."),
    ],
    ids=[GROUP, TABLE, ROLE],
)
@pytest.mark.parametrize(("keep", "end"), [(False, "ROLLBACK_COMPLETE"), (True, "CREATE_FAILED")])
def test_a_name_that_exists_fails_the_stack_not_the_call(
    standin: Standin, resource: dict[str, Any], message: str, keep: bool, end: str
) -> None:
    first = make(standin, "first", {"Named": resource})
    assert status(standin, first) == "CREATE_COMPLETE"
    known = (groups(standin), tables(standin))

    second = make(standin, "second", {"Other": table("other"), "Named": resource}, keep=keep)
    assert status(standin, second) == end
    ((name, reason),) = failed(standin, second)
    assert name == "Named"
    assert message in reason
    assert "HandlerErrorCode: AlreadyExists" in reason
    assert ("other" in tables(standin)) is keep

    remove(standin, second)
    assert (groups(standin), tables(standin)) == known
    assert status(standin, first) == "CREATE_COMPLETE"


def test_a_name_that_exists_in_a_nested_stack_fails_the_outer_one(standin: Standin) -> None:
    inner = json.dumps({"Resources": {"Other": table("other"), "Named": log_group(FIXED)}})
    client(standin, "s3").put_object(Bucket=standin.ids["bucket"], Key="inner.json", Body=inner.encode())
    url = f"https://s3.amazonaws.com/{standin.ids['bucket']}/inner.json"
    nested = {"Type": "AWS::CloudFormation::Stack", "Properties": {"TemplateURL": url}}
    client(standin, "logs").create_log_group(logGroupName=FIXED)

    outer = make(standin, "outer", {"Nested": nested}, keep=True)
    assert status(standin, outer) == "CREATE_FAILED"
    ((name, reason),) = failed(standin, outer)
    assert (name, "log group already exists" in reason) == ("Nested", True)
    stacks = client(standin, "cloudformation").describe_stacks()["Stacks"]
    assert [each["StackName"] for each in stacks] == ["outer"]
    assert (groups(standin), tables(standin)) == ([FIXED], [])


def test_a_mistake_in_the_template_is_still_the_calls_error(standin: Standin) -> None:
    template = json.dumps({"Parameters": {"P": {"Type": "String"}}, "Resources": {"Named": role("fixed")}})
    with pytest.raises(ClientError, match="Missing parameter P"):
        client(standin, "cloudformation").create_stack(StackName="pd", TemplateBody=template)


def test_a_retained_group_of_any_other_name_is_in_the_way_of_the_next_stack(standin: Standin) -> None:
    remove(standin, make(standin, "pd", {"Logs": log_group(FIXED)}))
    assert status(standin, make(standin, "pd", {"Logs": log_group(FIXED)})) == "ROLLBACK_COMPLETE"
    assert groups(standin) == [FIXED]


def test_a_group_of_the_minute_that_no_deleted_stack_left_is_in_the_way(standin: Standin) -> None:
    client(standin, "logs").create_log_group(logGroupName=OF_A_MINUTE)
    assert status(standin, make(standin, "pd", {"Logs": log_group(OF_A_MINUTE)})) == "ROLLBACK_COMPLETE"
    assert groups(standin) == [OF_A_MINUTE]


def test_clusters_of_one_name_and_minute_have_a_group_each(standin: Standin) -> None:
    logs = client(standin, "logs")
    for number in ("first", "second", "third"):
        stack = make(standin, "pd", {"Logs": log_group(OF_A_MINUTE)})
        assert status(standin, stack) == "CREATE_COMPLETE"
        assert logs.describe_log_streams(logGroupName=OF_A_MINUTE)["logStreams"] == []
        logs.create_log_stream(logGroupName=OF_A_MINUTE, logStreamName=number)
        logs.tag_log_group(logGroupName=OF_A_MINUTE, tags={"number": number})
        remove(standin, stack)
    for name, number in ((LONG_BEFORE, "first"), (BEFORE, "second"), (OF_A_MINUTE, "third")):
        (stream,) = logs.describe_log_streams(logGroupName=name)["logStreams"]
        assert stream["logStreamName"] == number
        assert f":log-group:{name}:" in stream["arn"]
        assert logs.list_tags_log_group(logGroupName=name)["tags"] == {"number": number}
    assert groups(standin) == [LONG_BEFORE, BEFORE, OF_A_MINUTE]


@pytest.mark.slow
def test_a_cluster_comes_again_within_the_minute(
    standin: Standin, in_one_minute: Callable[[str], Pcluster], config: str
) -> None:
    cli = in_one_minute("3.16.1")
    for expected in ([OF_A_MINUTE], [BEFORE, OF_A_MINUTE]):
        assert cli.create_cluster("pd", config).accepted
        assert status(standin, "pd") == "CREATE_COMPLETE"
        assert cli.delete_cluster("pd")
        assert groups(standin, "/aws/parallelcluster/") == expected


@pytest.mark.slow
def test_a_cluster_whose_log_group_exists_is_told_so(
    standin: Standin, in_one_minute: Callable[[str], Pcluster], config: str
) -> None:
    client(standin, "logs").create_log_group(logGroupName=OF_A_MINUTE)
    cli = in_one_minute("3.14.2")
    assert cli.create_cluster("pd", config).accepted
    failure = classify(cli.describe_cluster("pd"), cli.get_cluster_stack_events("pd"), {})
    assert failure.kind == "resource"
    assert "log group already exists" in failure.cause
