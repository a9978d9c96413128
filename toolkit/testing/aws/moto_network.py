"""Parts of a network in CloudFormation that moto takes and then forgets; each says what moto does instead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from moto.core.common_models import CloudFormationModel
from moto.ec2.exceptions import DependencyViolationError, InvalidPermissionDuplicateError
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.models.internet_gateways import InternetGateway
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.subnets import Subnet
from moto.ec2.models.vpcs import VPC

from toolkit.testing.aws.moto_storage import FILE_SYSTEM_INTERFACE


def install() -> None:
    _associate_route_tables()
    _keep_public_addresses()
    _keep_names()
    _delete_with_the_stack()
    _refuse_what_is_in_use()


def _associate_route_tables() -> None:
    """Moto keeps a stack's association apart: the subnet then has no route but the VPC's own."""
    backend: Any = EC2Backend
    original = backend.create_subnet_association

    def associate(self: Any, route_table_id: str, subnet_id: str) -> Any:
        self.associate_route_table(route_table_id, subnet_id=subnet_id)
        return original(self, route_table_id, subnet_id)

    backend.create_subnet_association = associate


def _keep_public_addresses() -> None:
    """Moto ignores MapPublicIpOnLaunch of a stack's subnet."""
    subnet: Any = Subnet
    original = subnet.create_from_cloudformation_json.__func__

    def create(cls: Any, name: str, document: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
        made = original(cls, name, document, *rest, **options)
        public = document["Properties"].get("MapPublicIpOnLaunch")
        made.map_public_ip_on_launch = "true" if public in (True, "true") else "false"
        return made

    subnet.create_from_cloudformation_json = classmethod(create)


def _keep_names() -> None:
    """Moto ignores EnableDnsHostnames of a stack's VPC."""
    vpc: Any = VPC
    original = vpc.create_from_cloudformation_json.__func__

    def create(cls: Any, name: str, document: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
        made = original(cls, name, document, *rest, **options)
        named = document["Properties"].get("EnableDnsHostnames")
        made.enable_dns_hostnames = named in (True, "true")
        return made

    vpc.create_from_cloudformation_json = classmethod(create)


def _delete_with_the_stack() -> None:
    """Moto leaves a deleted stack's gateways, route tables and interfaces behind: the VPC then can't go."""
    removals: dict[Any, Callable[[Any, str], None]] = {
        RouteTable: _remove_route_table,
        NatGateway: lambda ec2, name: ec2.delete_nat_gateway(name),
        InternetGateway: _remove_gateway,
        NetworkInterface: lambda ec2, name: ec2.enis.pop(name, None),
    }
    for model, remove in removals.items():

        def delete(
            cls: Any,  # noqa: ARG001
            resource_name: str,
            cloudformation_json: Any,  # noqa: ARG001
            account_id: str,
            region_name: str,
            *,
            remove: Callable[[Any, str], None] = remove,
        ) -> None:
            remove(ec2_backends[account_id][region_name], resource_name)

        model.delete_from_cloudformation_json = classmethod(delete)


def _remove_route_table(ec2: Any, name: str) -> None:
    ec2.get_route_table(name)._associations.clear()
    ec2.delete_route_table(name)


def _remove_gateway(ec2: Any, name: str) -> None:
    ec2.internet_gateways.pop(name)


def _refuse_what_is_in_use() -> None:
    """Moto deletes a security group that a file system has, and a VPC that other groups are in. It leaves
    interfaces of instances and gateways that are gone, so those don't count here."""
    backend: Any = EC2Backend
    delete_group, delete_vpc = backend._delete_security_group, backend.delete_vpc

    def group(self: Any, vpc_id: str | None, group_id: str) -> None:
        volumes = (each for each in self.enis.values() if each.description == FILE_SYSTEM_INTERFACE)
        if any(group_id in {each.id for each in volume.group_set} for volume in volumes):
            raise DependencyViolationError(f"resource {group_id} has a dependent object")
        delete_group(self, vpc_id, group_id)

    def vpc(self: Any, vpc_id: str) -> Any:
        if any(each.name != "default" for each in self.groups[vpc_id].values()):
            raise DependencyViolationError(f"The vpc '{vpc_id}' has dependencies and cannot be deleted.")
        return delete_vpc(self, vpc_id)

    backend._delete_security_group, backend.delete_vpc = group, vpc


class SecurityGroupEgress(CloudFormationModel):
    """Moto has the way in only. Being a subclass is enough to be found."""

    def __init__(self, name: str) -> None:
        self.physical_resource_id = name

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EC2::SecurityGroupEgress"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **_: Any
    ) -> SecurityGroupEgress:
        rule = cloudformation_json["Properties"]
        group = rule.get("DestinationSecurityGroupId")
        # The compute nodes' group in pcluster's template names the rule that a new group has anyway.
        with contextlib.suppress(InvalidPermissionDuplicateError):
            ec2_backends[account_id][region_name].authorize_security_group_egress(
                rule["GroupId"],
                str(rule["IpProtocol"]),
                rule.get("FromPort"),
                rule.get("ToPort"),
                [{"CidrIp": rule["CidrIp"]}] if rule.get("CidrIp") else [],
                source_groups=[{"GroupId": group}] if group else [],
            )
        return cls(resource_name)

    @classmethod
    def delete_from_cloudformation_json(cls, *_: Any, **__: Any) -> None:
        """The rule goes with its group."""
