"""What the reader makes of AWS's answers and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore import exceptions as aws

from toolkit.errors import ToolkitError
from toolkit.plan.aws_facts import Unknown
from toolkit.plan.cluster import ClusterPlan, plan_cluster
from toolkit.remote.aws_answers import answer_of, each_of, read_security_group, route_of
from toolkit.remote.aws_facts import AwsReader
from toolkit.remote.aws_session import aws_errors, client
from toolkit.render.cluster import render_cluster
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load
from toolkit.testing.aws import Standin, aws_standin

REGION = "ap-south-1"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
KEY = "AKIAIOSFODNN7EXAMPLE"


def refusal(code: str, message: str = "no", operation: str = "DescribeSubnets") -> aws.ClientError:
    return aws.ClientError({"Error": {"Code": code, "Message": message}}, operation)


ANSWERS = [
    (
        refusal(
            "UnauthorizedOperation",
            "You are not authorized to perform this operation. User: u is not "
            "authorized to perform: ec2:DescribeSubnets. Encoded authorization failure message: " + "x" * 900,
        ),
        "these credentials may not do ec2:DescribeSubnets",
        "use credentials with a policy",
    ),
    (refusal("AccessDenied", "Access Denied", "HeadBucket"), "may not do HeadBucket", "use credentials"),
    (refusal("403", "Forbidden", "HeadObject"), "may not do HeadObject", "use credentials"),
    (refusal("ExpiredToken"), "the AWS session has expired", "aws sso login"),
    (refusal("RequestExpired"), "the AWS session has expired", "aws sso login"),
    (
        refusal("InvalidClientTokenId"),
        "does not accept the credentials (InvalidClientTokenId)",
        "AWS_PROFILE",
    ),
    (refusal("AuthFailure"), "does not accept the credentials", "if the region is enabled"),
    (
        refusal("SignatureDoesNotMatch", f"signed with {SECRET}"),
        "does not accept the credentials",
        "AWS_PROFILE",
    ),
    (refusal("RequestLimitExceeded"), "asks to slow down", "wait a minute"),
    (refusal("OptInRequired"), "not signed up", "enable the region"),
    (refusal("InternalError", "sorry"), "answers InternalError to DescribeSubnets: sorry", "try again"),
    (refusal("Unheard", f"{KEY} is odd"), "AKIA... is odd", "correct what it names"),
    (aws.NoCredentialsError(), "no usable AWS credentials", "AWS_PROFILE"),
    (
        aws.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
        "no usable AWS",
        "AWS_PROFILE",
    ),
    (aws.CredentialRetrievalError(provider="process", error_msg="gone"), "no usable AWS", "AWS_PROFILE"),
    (aws.UnauthorizedSSOTokenError(), "the AWS login has ended", "aws sso login"),
    (aws.ProfileNotFound(profile="mine"), "(mine) could not be found", "list-profiles"),
    (aws.InvalidRegionError(region_name="_"), "region", "correct target.region"),
    (aws.NoRegionError(), "region", "correct target.region"),
    (
        aws.EndpointConnectionError(endpoint_url="https://ec2.ap-sout-1.amazonaws.com"),
        "can't be reached",
        "target.region's spelling",
    ),
    (aws.ConnectTimeoutError(endpoint_url="https://x"), "can't be reached", "HTTPS_PROXY"),
    (aws.ReadTimeoutError(endpoint_url="https://x"), "can't be reached", "HTTPS_PROXY"),
    (aws.SSLError(endpoint_url="https://x", error="bad"), "can't be reached", "HTTPS_PROXY"),
    (aws.ProxyConnectionError(proxy_url="http://p"), "can't be reached", "HTTPS_PROXY"),
    (aws.DataNotFoundError(data_path="x"), "Unable to load data", "AWS_PROFILE"),
]


@pytest.mark.parametrize(("raised", "what", "step"), ANSWERS, ids=lambda each: str(each)[:40])
def test_a_failure_is_told_with_its_next_step(raised: Exception, what: str, step: str) -> None:
    with pytest.raises(ToolkitError) as told, aws_errors("reading subnets"):
        raise raised
    assert told.value.what.startswith("reading subnets: ")
    assert what in told.value.what
    assert step in told.value.next_step
    text = str(told.value)
    assert SECRET not in text
    assert KEY not in text
    assert len(text) < 700
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId", "SignatureDoesNotMatch"])
def test_credentials_that_serve_for_nothing_end_the_reading(code: str) -> None:
    def read() -> None:
        with aws_errors("reading subnets"):
            raise refusal(code)

    with pytest.raises(ToolkitError):
        answer_of(read)


def test_a_refused_reading_is_unknown_for_each_name() -> None:
    def read() -> dict[str, str]:
        with aws_errors("reading subnets"):
            raise refusal("UnauthorizedOperation", "not authorized to perform: ec2:DescribeSubnets")

    unknown = Unknown("reading subnets: these credentials may not do ec2:DescribeSubnets")
    assert each_of(["a", "b"], read) == {"a": unknown, "b": unknown}
    assert each_of([], read) == {}
    assert each_of(["a", "b"], lambda: {"a": 1}) == {"a": 1, "b": None}


def table(vpc: str, *routes: dict[str, str], subnet: str = "", main: bool = False) -> dict[str, Any]:
    link = {"SubnetId": subnet} if subnet else {"Main": main}
    return {"VpcId": vpc, "Associations": [link], "Routes": list(routes)}


ANYWHERE = {"DestinationCidrBlock": "0.0.0.0/0", "State": "active"}
LOCAL = {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local", "State": "active"}


@pytest.mark.parametrize(
    ("tables", "route"),
    [
        ([table("v", LOCAL, {**ANYWHERE, "GatewayId": "igw-1"}, subnet="s")], "igw"),
        ([table("v", {**ANYWHERE, "NatGatewayId": "nat-1"}, subnet="s")], "nat"),
        ([table("v", {**ANYWHERE, "TransitGatewayId": "tgw-1"}, subnet="s")], "other"),
        ([table("v", LOCAL, subnet="s")], "none"),
        ([table("v", {**ANYWHERE, "NatGatewayId": "nat-1", "State": "blackhole"}, subnet="s")], "none"),
        ([table("v", {**ANYWHERE, "GatewayId": "igw-1"}, main=True)], "igw"),
        ([table("v", {**ANYWHERE, "GatewayId": "igw-1"}, main=True), table("v", LOCAL, subnet="s")], "none"),
        ([table("other", {**ANYWHERE, "GatewayId": "igw-1"}, main=True)], "none"),
        ([], "none"),
        (Unknown("refused"), Unknown("refused")),
    ],
)
def test_the_default_route_is_that_of_the_subnets_own_table(tables: Any, route: Any) -> None:
    assert route_of({"SubnetId": "s", "VpcId": "v"}, tables) == route


def test_a_rule_may_hold_several_groups() -> None:
    """aws/aws-parallelcluster#3590: such a rule was taken for none."""
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-2"}, {"GroupId": "sg-1"}]}
    answer = {"GroupId": "sg-1", "VpcId": "v", "IpPermissions": [rule], "IpPermissionsEgress": [rule]}
    group = read_security_group(answer)
    assert group.all_from_itself
    assert group.all_to_itself
    only_ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "UserIdGroupPairs": [{"GroupId": "sg-1"}]}
    group = read_security_group({**answer, "IpPermissions": [only_ssh], "IpPermissionsEgress": []})
    assert not group.all_from_itself
    assert not group.all_to_itself


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A machine without any AWS settings, but those given."""

    def be(**settings: str) -> None:
        for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        for name, value in {"AWS_EC2_METADATA_DISABLED": "true", **settings}.items():
            monkeypatch.setenv(name, value)

    return be


def test_without_credentials_nothing_is_asked(nobody: Callable[..., None]) -> None:
    nobody(AWS_ENDPOINT_URL="http://127.0.0.1:9")
    with pytest.raises(ToolkitError, match="no usable AWS credentials"):
        AwsReader(REGION).account()


def test_a_profile_that_is_not_there(nobody: Callable[..., None]) -> None:
    nobody(AWS_PROFILE="absent")
    with pytest.raises(ToolkitError, match=r"opening ec2 in ap-south-1: .*\(absent\) could not be found"):
        AwsReader(REGION)


def test_an_address_where_nobody_answers(nobody: Callable[..., None]) -> None:
    nobody(
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_ACCESS_KEY_ID=KEY,
        AWS_SECRET_ACCESS_KEY=SECRET,
        NO_PROXY="127.0.0.1",
    )
    with pytest.raises(ToolkitError, match="AWS can't be reached") as told:
        AwsReader(REGION).account()
    assert SECRET not in str(told.value)


@pytest.fixture(scope="module")
def running() -> Iterator[Standin]:
    with aws_standin() as standin:
        yield standin


@pytest.fixture
def account(running: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    running.forget_calls()
    return running


def planned(standin: Standin, *more: str) -> tuple[Deployment, ClusterPlan, dict[str, Any]]:
    file = Path(__file__).parents[2] / "deployments" / "qwen3-32b-p5en.yaml"
    ids = standin.ids
    head, compute = ids["public_subnet"], ids["private_subnet"]
    deployment = load(
        file, [f"target.network.head_subnet={head}", f"target.network.compute_subnet={compute}", *more]
    ).deployment
    plan = plan_cluster(deployment.target)  # type: ignore[arg-type]
    return deployment, plan, yaml.safe_load(render_cluster(plan))


@pytest.mark.aws
def test_facts_are_read_with_few_calls_and_none_that_changes(account: Standin) -> None:
    ids = account.ids
    settings = [
        f"target.network.security_groups=[{ids['sg_efa']}]",
        f"target.storage.file_system={ids['filesystem']}",
        f"target.capacity.placement_group={ids['placement_group']}",
    ]
    deployment, plan, document = planned(account, *settings)
    facts = AwsReader(REGION).facts(deployment.target, plan, document)  # type: ignore[arg-type]
    calls = account.calls()
    assert len(calls) <= 22
    assert not [call for call in calls if call.creating or call.dry_run]
    assert facts.account == "123456789012"
    head, compute = facts.subnets[ids["public_subnet"]], facts.subnets[ids["private_subnet"]]
    assert head
    assert compute
    assert not isinstance(head, Unknown)
    assert not isinstance(compute, Unknown)
    assert (head.route, head.public_addresses, head.zone) == ("igw", True, "ap-south-1b")
    assert (compute.route, compute.public_addresses) == ("nat", False)
    assert compute.free < 4092
    system = facts.file_systems[ids["filesystem"]]
    assert system
    assert not isinstance(system, Unknown)
    assert (system.type, system.vpc, system.groups) == ("LUSTRE", ids["vpc"], (ids["sg_lustre"],))
    assert facts.placement_groups[ids["placement_group"]]
    assert facts.stack is None
    assert facts.images == {plan.image: None}


@pytest.mark.aws
def test_the_official_image_is_found_by_its_pattern(account: Standin) -> None:
    found = AwsReader(REGION).official_ami("aws-parallelcluster-3.14.2-ubuntu-2404-lts-hvm-x86_64-*")
    assert found
    assert found.id == account.ids["official_ami"]
    assert AwsReader(REGION).official_ami("aws-parallelcluster-3.99.0-*") is None
    assert AwsReader(REGION).ami("ami-0ddddddddddddddd1") is None


@pytest.mark.aws
def test_a_client_goes_where_the_environment_says(account: Standin) -> None:
    ec2 = client("ec2", REGION)
    assert ec2.meta.endpoint_url == account.url
    assert ec2.meta.config.connect_timeout == 5
