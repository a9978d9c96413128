"""A cluster's own network, made by the stand-in's CloudFormation from the shipped template."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest
import yaml

from toolkit.data import shipped
from toolkit.errors import ToolkitError
from toolkit.plan.network import NetworkPlan, subnet_cidrs
from toolkit.remote.aws_network import (
    NetworkIds,
    delete_network,
    describe_network,
    ensure_network,
    network_users,
)
from toolkit.remote.aws_session import client
from toolkit.testing.aws import Standin

pytestmark = pytest.mark.aws

REGION = "ap-south-1"
CIDR = IPv4Network("10.32.0.0/16")
HEAD, COMPUTE = subnet_cidrs(CIDR)
PLAN = NetworkPlan("pd", REGION, "ap-south-1b", CIDR, HEAD, COMPUTE, (("project", "pd"),))


@pytest.fixture
def cloud(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    for name, value in standin.environment.items():
        monkeypatch.setenv(name, value)
    standin.forget_calls()
    return standin


@pytest.fixture
def made(cloud: Standin) -> NetworkIds:
    ids = ensure_network(PLAN, print, poll=0.1)
    cloud.forget_calls()
    return ids


def test_subnets_lie_in_the_zone_with_the_planned_addresses(made: NetworkIds) -> None:
    found = client("ec2", REGION).describe_subnets(SubnetIds=[made.head_subnet, made.compute_subnet])
    subnets = {each["SubnetId"]: each for each in found["Subnets"]}
    head, compute = subnets[made.head_subnet], subnets[made.compute_subnet]
    assert {each["AvailabilityZone"] for each in (head, compute)} == {"ap-south-1b"}
    assert {each["VpcId"] for each in (head, compute)} == {made.vpc}
    assert (head["CidrBlock"], compute["CidrBlock"]) == ("10.32.0.0/24", "10.32.128.0/17")
    assert (head["MapPublicIpOnLaunch"], compute["MapPublicIpOnLaunch"]) == (True, False)
    assert {"Key": "project", "Value": "pd"} in compute["Tags"]


def test_the_head_has_a_way_in_and_the_nodes_only_a_way_out(made: NetworkIds) -> None:
    head, compute = (_routes(subnet) for subnet in (made.head_subnet, made.compute_subnet))
    assert head["0.0.0.0/0"].get("GatewayId", "").startswith("igw-")
    assert compute["0.0.0.0/0"].get("NatGatewayId", "").startswith("nat-")
    gateway = client("ec2", REGION).describe_nat_gateways(Filters=[{"Name": "vpc-id", "Values": [made.vpc]}])
    assert gateway["NatGateways"][0]["SubnetId"] == made.head_subnet


def test_s3_is_reached_without_the_nat_gateway(made: NetworkIds) -> None:
    (endpoint,) = client("ec2", REGION).describe_vpc_endpoints()["VpcEndpoints"]
    assert (endpoint["VpcId"], endpoint["VpcEndpointType"]) == (made.vpc, "Gateway")
    assert endpoint["ServiceName"] == f"com.amazonaws.{REGION}.s3"
    assert len(endpoint["RouteTableIds"]) == 2


def test_names_work_in_the_vpc(made: NetworkIds) -> None:
    ec2 = client("ec2", REGION)
    for attribute, key in (
        ("enableDnsSupport", "EnableDnsSupport"),
        ("enableDnsHostnames", "EnableDnsHostnames"),
    ):
        answer = ec2.describe_vpc_attribute(VpcId=made.vpc, Attribute=attribute)
        assert answer[key]["Value"] is True


def test_the_security_group_lets_efa_through_both_ways(made: NetworkIds) -> None:
    found = client("ec2", REGION).describe_security_groups(GroupIds=[made.security_group])
    (group,) = found["SecurityGroups"]
    for rules in (group["IpPermissions"], group["IpPermissionsEgress"]):
        own = [
            pair["GroupId"]
            for rule in rules
            if rule["IpProtocol"] == "-1"
            for pair in rule["UserIdGroupPairs"]
        ]
        assert own == [made.security_group]


def test_a_network_that_is_there_is_used(cloud: Standin, made: NetworkIds) -> None:
    assert ensure_network(PLAN, print) == made
    assert not cloud.creating_calls()
    network = describe_network("pd", REGION)
    assert network is not None
    assert (network.stack, network.status, network.zone) == ("pd-network", "CREATE_COMPLETE", "ap-south-1b")


def test_a_network_of_another_zone_is_refused(cloud: Standin, made: NetworkIds) -> None:
    other = NetworkPlan("pd", REGION, "ap-south-1a", CIDR, HEAD, COMPUTE)
    with pytest.raises(ToolkitError, match="zone ap-south-1b, but the GPU nodes are in ap-south-1a"):
        ensure_network(other, print)
    assert not cloud.creating_calls()
    assert made.vpc


def test_a_stack_that_somebody_else_made_is_neither_used_nor_deleted(cloud: Standin) -> None:
    template = '{"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}'
    client("cloudformation", REGION).create_stack(StackName="pd-network", TemplateBody=template)
    cloud.forget_calls()
    for act in (
        lambda: ensure_network(PLAN, print),
        lambda: delete_network("pd", REGION, print),
        lambda: describe_network("pd", REGION),
    ):
        with pytest.raises(ToolkitError, match="the toolkit did not make it"):
            act()
    assert not cloud.creating_calls()


def test_the_network_goes_with_everything_in_it(cloud: Standin, made: NetworkIds) -> None:
    assert network_users(made.vpc, REGION) == ()
    assert delete_network("pd", REGION, print, poll=0.1)
    assert describe_network("pd", REGION) is None
    vpcs = client("ec2", REGION).describe_vpcs()["Vpcs"]
    assert made.vpc not in {vpc["VpcId"] for vpc in vpcs}
    cloud.forget_calls()
    assert not delete_network("pd", REGION, print)
    assert not cloud.creating_calls()


def test_a_network_in_use_is_not_deleted(cloud: Standin, made: NetworkIds) -> None:
    ec2 = client("ec2", REGION)
    tags = [{"Key": "parallelcluster:cluster-name", "Value": "pd"}]
    started = ec2.run_instances(
        ImageId=cloud.ids["plain_ubuntu_ami"],
        InstanceType="c6i.large",
        MinCount=1,
        MaxCount=1,
        SubnetId=made.compute_subnet,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    instance = started["Instances"][0]["InstanceId"]
    interface = ec2.create_network_interface(SubnetId=made.head_subnet, Description="a load balancer")
    eni = interface["NetworkInterface"]["NetworkInterfaceId"]
    group = ec2.create_security_group(GroupName="theirs", Description="of others", VpcId=made.vpc)["GroupId"]
    cloud.forget_calls()
    with pytest.raises(ToolkitError) as told:
        delete_network("pd", REGION, print)
    assert f"security group {group} (theirs)" in str(told.value)
    assert f"instance {instance} (pd)" in str(told.value)
    assert f"interface {eni} (a load balancer)" in str(told.value)
    assert not cloud.creating_calls()


def test_every_resource_of_the_template_is_made(made: NetworkIds) -> None:
    resources = client("cloudformation", REGION).describe_stack_resources(StackName="pd-network")
    found = {each["LogicalResourceId"] for each in resources["StackResources"]}
    assert found == set(_template()["Resources"])
    assert made.vpc


def _routes(subnet: str) -> dict[str, Any]:
    chosen = [{"Name": "association.subnet-id", "Values": [subnet]}]
    (table,) = client("ec2", REGION).describe_route_tables(Filters=chosen)["RouteTables"]
    return {route.get("DestinationCidrBlock", ""): route for route in table["Routes"]}


def _template() -> dict[str, Any]:
    """The template, with CloudFormation's short forms (!Ref) left unread."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda *reference: reference[1])
    text = shipped("pcluster-config", "network.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.load(text, Loader)
    return document
