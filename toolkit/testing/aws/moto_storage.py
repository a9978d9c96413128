"""S3 and FSx: places where moto answers unlike AWS and pcluster notices."""

from __future__ import annotations

from typing import Any

from moto.ec2.models import ec2_backends
from moto.fsx.models import FileSystem, FSxBackend
from moto.iam.access_control import PermissionResult
from moto.moto_api._internal import mock_random
from moto.s3.models import FakeBucket

MOUNT_NAME = "standin1"
FILE_SYSTEM_INTERFACE = "fsx"  # the description of its interfaces


def install() -> None:
    _ignore_bucket_policies()
    _give_file_systems_a_network()
    _refuse_unknown_file_systems()
    _delete_interfaces()


def _ignore_bucket_policies() -> None:
    """Moto takes a Deny with a Condition that does not hold (aws:SecureTransport) for a denial of all."""
    bucket: Any = FakeBucket

    def neutral(*_: Any) -> PermissionResult:
        return PermissionResult.NEUTRAL

    bucket.get_permission = neutral


def _give_file_systems_a_network() -> None:
    """Moto's file systems have ids of 8 digits (pcluster wants 17) and no VPC, interface or mount name."""
    model: Any = FileSystem
    original_init, original_dict = model.__init__, model.to_dict

    def init(self: Any, account_id: str, region_name: str, *rest: Any, **options: Any) -> None:
        original_init(self, account_id, region_name, *rest, **options)
        short, full = self.file_system_id, f"fs-{mock_random.getrandbits(68):017x}"
        for name, value in list(vars(self).items()):
            if isinstance(value, str) and short in value:
                setattr(self, name, value.replace(short, full))
        backend = ec2_backends[account_id][region_name]
        subnet = backend.get_subnet(self.subnet_ids[0])
        groups = list(self.security_group_ids or [])
        interface = backend.create_network_interface(
            subnet, [], group_ids=groups, description=FILE_SYSTEM_INTERFACE
        )
        self.network = {"VpcId": subnet.vpc_id, "NetworkInterfaceIds": [interface.id]}

    def to_dict(self: Any) -> dict[str, Any]:
        document = {**original_dict(self), **self.network, "Lifecycle": "AVAILABLE"}
        document["OwnerId"] = self.resource_arn.split(":")[4]
        if "LustreConfiguration" in document:
            lustre = {**document["LustreConfiguration"], "MountName": MOUNT_NAME}
            document["LustreConfiguration"] = lustre
        return document

    model.__init__, model.to_dict = init, to_dict


def _refuse_unknown_file_systems() -> None:
    """Moto answers an unknown id with an empty list, AWS with FileSystemNotFound."""
    from moto.core.exceptions import JsonRESTError

    backend: Any = FSxBackend
    original = backend.describe_file_systems

    def describe(self: Any, file_system_ids: list[str], *rest: Any, **options: Any) -> Any:
        for name in file_system_ids or ():
            if name not in self.file_systems:
                raise JsonRESTError("FileSystemNotFound", f"File system '{name}' does not exist.")
        return original(self, file_system_ids=file_system_ids, *rest, **options)  # noqa: B026

    backend.describe_file_systems = describe


def _delete_interfaces() -> None:
    """Those of a deleted file system go with it."""
    backend: Any = FSxBackend
    original = backend.delete_file_system

    def delete(self: Any, file_system_id: str, *rest: Any, **options: Any) -> Any:
        system = self.file_systems.get(file_system_id)
        answer = original(self, file_system_id, *rest, **options)
        for name in system.network["NetworkInterfaceIds"] if system else ():
            ec2_backends[self.account_id][self.region_name].enis.pop(name, None)
        return answer

    backend.delete_file_system = delete
