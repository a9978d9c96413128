"""The account that the stand-in starts with: the published environment, and beside each part a faulty one.

Seeded through the AWS API of the stand-in itself, so that it is what an account of AWS would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.testing.aws import amis

REGION = "ap-south-1"
ZONE, OTHER_ZONE = f"{REGION}b", f"{REGION}a"
BUCKET = "pd-toolkit-scripts"
SCRIPTS = ("configure.sh", "upgrade.sh", "verify.sh")
RESERVATION = "cr-0123456789abcdef0"
# Values that CreateCapacityReservation has no parameter for are seeded as tags that begin so.
SEED_PREFIX = "standin:"


@dataclass(frozen=True)
class Clients:
    """botocore clients of the stand-in, made once: making one takes longer than a seed."""

    ec2: Any
    s3: Any
    fsx: Any
    logs: Any
    dynamodb: Any
    cloudformation: Any


def seed(clients: Clients) -> dict[str, str]:
    """Fills an empty account; the ids of what it made, by the names that tests use."""
    ids = _network(clients.ec2)
    ids |= _security_groups(clients.ec2, ids["vpc"])
    ids |= _keys(clients.ec2)
    ids |= _reservations(clients.ec2)
    ids |= _file_systems(clients, ids)
    ids |= _bucket(clients.s3)
    ids |= _images(clients.ec2)
    return ids


def _network(ec2: Any) -> dict[str, str]:
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    for attribute in ("EnableDnsSupport", "EnableDnsHostnames"):
        ec2.modify_vpc_attribute(VpcId=vpc, **{attribute: {"Value": True}})
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    subnets = {
        name: ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=zone)["Subnet"]["SubnetId"]
        for name, cidr, zone in (
            ("public_subnet", "10.0.0.0/24", ZONE),
            ("private_subnet", "10.0.16.0/20", ZONE),
            ("private_subnet_other_az", "10.0.32.0/20", OTHER_ZONE),
            ("small_subnet", "10.0.48.0/28", ZONE),
        )
    }
    public = subnets["public_subnet"]
    ec2.modify_subnet_attribute(SubnetId=public, MapPublicIpOnLaunch={"Value": True})
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=public, AllocationId=address)["NatGateway"]["NatGatewayId"]
    _route(ec2, vpc, [public], GatewayId=gateway)
    _route(ec2, vpc, [each for each in subnets.values() if each != public], NatGatewayId=nat)
    return {"vpc": vpc, "igw": gateway, "nat": nat, **subnets}


def _route(ec2: Any, vpc: str, subnets: list[str], **target: str) -> None:
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", **target)
    for subnet in subnets:
        ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)


def _security_groups(ec2: Any, vpc: str) -> dict[str, str]:
    def group(name: str, description: str) -> str:
        created = ec2.create_security_group(GroupName=name, Description=description, VpcId=vpc)
        return str(created["GroupId"])

    efa, without, lustre = (
        group("efa", "all within"),
        group("no-efa", "none"),
        group("lustre", "988, 1018-1023"),
    )
    within = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": efa}]}]
    ec2.authorize_security_group_ingress(GroupId=efa, IpPermissions=within)
    ec2.authorize_security_group_egress(GroupId=efa, IpPermissions=within)
    ports = [(988, 988), (1018, 1023)]
    permissions = [
        {"IpProtocol": "tcp", "FromPort": first, "ToPort": last, "IpRanges": [{"CidrIp": "10.0.0.0/16"}]}
        for first, last in ports
    ]
    ec2.authorize_security_group_ingress(GroupId=lustre, IpPermissions=permissions)
    return {"sg_efa": efa, "sg_no_efa": without, "sg_lustre": lustre}


def _keys(ec2: Any) -> dict[str, str]:
    # KeyType is given for both: moto's DescribeKeyPairs tells only what it was given.
    ec2.create_key_pair(KeyName="pd-key", KeyType="ed25519")
    ec2.create_key_pair(KeyName="rsa-key", KeyType="rsa")
    return {"key": "pd-key", "rsa_key": "rsa-key"}


def _reservations(ec2: Any) -> dict[str, str]:
    group = ec2.create_placement_group(GroupName="pd-group", Strategy="cluster")["PlacementGroup"]

    def reserve(last_digit: int, kind: str, count: int, zone: str = ZONE, arn: str = "", **more: str) -> str:
        name = RESERVATION if last_digit == 0 else f"cr-0aaaaaaaaaaaaaaa{last_digit}"
        ec2.create_capacity_reservation(
            InstanceType=kind,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=zone,
            InstanceCount=count,
            InstanceMatchCriteria="targeted",
            TagSpecifications=[
                {"ResourceType": "capacity-reservation", "Tags": _seeded({"id": name, **more})}
            ],
            **({"PlacementGroupArn": arn} if arn else {}),
        )
        return name

    gpu = "p5en.48xlarge"
    return {
        "reservation": reserve(0, gpu, 2),
        "reservation_wrong_type": reserve(1, "p5.48xlarge", 2),
        "reservation_wrong_az": reserve(2, gpu, 2, OTHER_ZONE),
        "reservation_one": reserve(3, gpu, 1),
        "reservation_block": reserve(4, gpu, 2, type="capacity-block"),
        "reservation_expired": reserve(5, gpu, 2, state="expired"),
        "reservation_cancelled": reserve(6, gpu, 2, state="cancelled"),
        "reservation_in_group": reserve(7, gpu, 2, arn=group["GroupArn"]),
        "placement_group": group["GroupName"],
        "placement_group_arn": group["GroupArn"],
    }


def _seeded(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": f"{SEED_PREFIX}{name}", "Value": value} for name, value in values.items()]


def _file_systems(clients: Clients, ids: Mapping[str, str]) -> dict[str, str]:
    def lustre(group: str) -> str:
        created = clients.fsx.create_file_system(
            FileSystemType="LUSTRE",
            StorageCapacity=4800,
            SubnetIds=[ids["private_subnet"]],
            SecurityGroupIds=[group],
            LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
        )
        return str(created["FileSystem"]["FileSystemId"])

    return {"filesystem": lustre(ids["sg_lustre"]), "filesystem_no_988": lustre(ids["sg_no_efa"])}


def _bucket(s3: Any) -> dict[str, str]:
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    for script in SCRIPTS:
        s3.put_object(Bucket=BUCKET, Key=f"bootstrap/{script}", Body=b"#!/bin/bash\n:\n")
    return {"bucket": BUCKET}


def _images(ec2: Any) -> dict[str, str]:
    tags = {"version": "3.13.0", "os": "ubuntu2404", "image_id": "pd-node-of-another-version"}
    ec2.create_tags(
        Resources=[amis.OTHER_VERSION_AMI],
        Tags=[{"Key": f"parallelcluster:{key}", "Value": value} for key, value in tags.items()],
    )
    return {
        "official_ami": amis.OFFICIAL_AMI,
        "official_ami_3_16_1": amis.OFFICIAL_AMI_3_16_1,
        "plain_ubuntu_ami": amis.PLAIN_UBUNTU_AMI,
        "other_version_ami": amis.OTHER_VERSION_AMI,
    }
