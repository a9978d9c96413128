"""EC2's answers, as boto3 gives them -> the facts of plan/aws_facts.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from toolkit.plan.aws_facts import Ami, Answer, Reservation, Rule, SecurityGroup, Subnet, Unknown
from toolkit.plan.instance_type import InstanceType
from toolkit.remote.aws_session import AwsAnswer

T = TypeVar("T")
Route = Literal["igw", "nat", "other", "none"] | Unknown
_ANYWHERE = "0.0.0.0/0"


def answer_of(read: Callable[[], T | None]) -> Answer[T]:
    """What `read` returns, or Unknown with the words of AWS if it did not answer that."""
    try:
        return read()
    except AwsAnswer as answer:
        return Unknown(answer.what)


def each_of(wanted: Sequence[str], read: Callable[[], Mapping[str, T]]) -> dict[str, Answer[T]]:
    """An answer for each wanted name from one reading; `read` is not called when nothing is wanted."""
    if not wanted:
        return {}
    found = answer_of(read)
    if found is None or isinstance(found, Unknown):
        return dict.fromkeys(wanted, found)
    return {name: found.get(name) for name in wanted}


def filters(wanted: Mapping[str, str | Iterable[str]]) -> dict[str, Any]:
    """EC2's Filters argument; unlike an id, a filter that nothing matches is no error."""
    return {
        "Filters": [
            {"Name": name, "Values": [values] if isinstance(values, str) else list(values)}
            for name, values in wanted.items()
        ]
    }


def newest(images: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(images, key=lambda image: str(image.get("CreationDate", "")))


def read_subnet(answer: Mapping[str, Any], route: Route) -> Subnet:
    return Subnet(
        id=answer["SubnetId"],
        zone=answer["AvailabilityZone"],
        zone_id=answer.get("AvailabilityZoneId", ""),
        vpc=answer["VpcId"],
        cidr=answer["CidrBlock"],
        free=answer["AvailableIpAddressCount"],
        public_addresses=bool(answer.get("MapPublicIpOnLaunch")),
        route=route,
    )


def route_of(subnet: Mapping[str, Any], tables: Answer[list[dict[str, Any]]]) -> Route:
    """Where a subnet's default route goes: by its own route table, else by its VPC's main one."""
    if tables is None or isinstance(tables, Unknown):
        return tables or "none"
    main: Mapping[str, Any] = {}
    for table in tables:
        for link in table.get("Associations", []):
            if link.get("SubnetId") == subnet["SubnetId"]:
                return _default_route(table)
            if link.get("Main") and table["VpcId"] == subnet["VpcId"]:
                main = table
    return _default_route(main)


def _default_route(table: Mapping[str, Any]) -> Route:
    for route in table.get("Routes", []):
        # A deleted gateway leaves its route behind, as a black hole.
        if route.get("DestinationCidrBlock") != _ANYWHERE or route.get("State") == "blackhole":
            continue
        if str(route.get("GatewayId", "")).startswith("igw-"):
            return "igw"
        return "nat" if route.get("NatGatewayId") else "other"
    return "none"


def read_reservation(answer: Mapping[str, Any]) -> Reservation:
    return Reservation(
        id=answer["CapacityReservationId"],
        instance_type=answer["InstanceType"],
        zone=answer.get("AvailabilityZone", ""),
        state=answer["State"],
        total=answer.get("TotalInstanceCount", 0),
        available=answer.get("AvailableInstanceCount", 0),
        criteria=answer.get("InstanceMatchCriteria", "open"),
        kind=answer.get("ReservationType", "default"),
        starts=answer.get("StartDate"),
        ends=answer.get("EndDate"),
        placement_group=answer.get("PlacementGroupArn"),
        platform=answer.get("InstancePlatform", "Linux/UNIX"),
        tenancy=answer.get("Tenancy", "default"),
    )


def read_security_group(answer: Mapping[str, Any]) -> SecurityGroup:
    return SecurityGroup(
        id=answer["GroupId"],
        vpc=answer.get("VpcId", ""),
        inbound=tuple(map(_rule, answer.get("IpPermissions", []))),
        outbound=tuple(map(_rule, answer.get("IpPermissionsEgress", []))),
    )


def _rule(answer: Mapping[str, Any]) -> Rule:
    return Rule(
        protocol=str(answer.get("IpProtocol", "-1")),
        first_port=answer.get("FromPort"),
        last_port=answer.get("ToPort"),
        groups=tuple(pair["GroupId"] for pair in answer.get("UserIdGroupPairs", []) if "GroupId" in pair),
        networks=tuple(each["CidrIp"] for each in answer.get("IpRanges", [])),
    )


def read_ami(answer: Mapping[str, Any]) -> Ami:
    root = next(
        (
            each.get("Ebs", {}).get("VolumeSize")
            for each in answer.get("BlockDeviceMappings", [])
            if each.get("DeviceName") == answer.get("RootDeviceName")
        ),
        None,
    )
    return Ami(
        id=answer["ImageId"],
        name=answer.get("Name", ""),
        owner=answer.get("OwnerId", ""),
        owner_alias=answer.get("ImageOwnerAlias"),
        state=answer.get("State", ""),
        architecture=answer.get("Architecture", ""),
        volume_gb=root,
        tags={tag["Key"]: tag["Value"] for tag in answer.get("Tags", [])},
    )


def read_instance_type(answer: Mapping[str, Any]) -> InstanceType:
    """Of DescribeInstanceTypes; how many NUMA nodes a type has is not in it."""
    network = answer["NetworkInfo"]
    gpus = answer.get("GpuInfo", {}).get("Gpus", [])
    cards = network.get("NetworkCards", [])
    first: Mapping[str, Any] = next((card for card in cards if card.get("NetworkCardIndex") == 0), {})
    return InstanceType(
        name=answer["InstanceType"],
        vcpus=answer["VCpuInfo"]["DefaultVCpus"],
        memory_mib=answer["MemoryInfo"]["SizeInMiB"],
        gpus=sum(gpu["Count"] for gpu in gpus),
        gpu=f"{gpus[0]['Manufacturer']} {gpus[0]['Name']}" if gpus else None,
        network_cards=network.get("MaximumNetworkCards", 1),
        interfaces_of_card_0=first.get(
            "MaximumNetworkInterfaces", network.get("MaximumNetworkInterfaces", 1)
        ),
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        usage_classes=tuple(sorted(answer.get("SupportedUsageClasses", []))),
    )
