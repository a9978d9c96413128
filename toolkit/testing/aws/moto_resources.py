"""CloudFormation resources that moto does not model, so that pcluster's whole templates can be created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import moto.cloudformation.models as models
import moto.cloudformation.parsing as parsing
from moto.cloudformation.exceptions import UnformattedGetAttTemplateException
from moto.fsx.models import fsx_backends

from toolkit.testing.aws.moto_storage import MOUNT_NAME

FILE_SYSTEM = "AWS::FSx::FileSystem"
_ATTRIBUTES = {
    (FILE_SYSTEM, "LustreMountName"): MOUNT_NAME,
    ("AWS::CloudFormation::WaitCondition", "Data"): "{}",
}


def install() -> None:
    _accept_every_type()
    _give_nested_outputs()
    _let_errors_out()


class Inert:
    """A resource that exists and does nothing: alarms, dashboards, wait conditions, Image Builder's parts."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.type = name, kind
        self.tags: list[Mapping[str, str]] = []

    @property
    def physical_resource_id(self) -> str:
        return self.name

    def is_created(self) -> bool:
        return True

    def get_cfn_attribute(self, attribute: str) -> str:
        return _ATTRIBUTES.get((self.type, attribute), f"standin-{attribute}-{self.name}")

    def delete(self, *_: Any, **__: Any) -> None:
        return None


def _inert_model(kind: str) -> type[Inert]:
    class Model(Inert):
        @staticmethod
        def cloudformation_type() -> str:
            return kind

        @staticmethod
        def cloudformation_name_type() -> None:
            return None

        @classmethod
        def has_cfn_attr(cls, attribute: str) -> bool:  # noqa: ARG003
            return True

        @classmethod
        def create_from_cloudformation_json(
            cls, name: str, document: Any, account: str, region: str, **_: Any
        ) -> Inert:
            if kind == FILE_SYSTEM:
                name = _make_file_system(document["Properties"], account, region)
            return cls(name, kind)

        @classmethod
        def update_from_cloudformation_json(cls, original_resource: Any, *_: Any, **__: Any) -> Any:
            return original_resource

        @classmethod
        def delete_from_cloudformation_json(cls, *_: Any, **__: Any) -> None:
            return None

        def delete(self, *place: Any, **__: Any) -> None:
            if kind == FILE_SYSTEM:
                account, region = place
                fsx_backends[account][region].delete_file_system(self.name, "", None, None, None)

    return Model


def _make_file_system(properties: Mapping[str, Any], account: str, region: str) -> str:
    """Its id. It is a real one of moto's, so that what outlives its stack can be seen and deleted."""
    made = fsx_backends[account][region].create_file_system(
        client_request_token="",
        file_system_type=properties["FileSystemType"],
        storage_capacity=int(properties["StorageCapacity"]),
        storage_type=properties.get("StorageType", "SSD"),
        subnet_ids=list(properties["SubnetIds"]),
        security_group_ids=list(properties["SecurityGroupIds"]),
        tags=list(properties.get("Tags", [])),
        kms_key_id=None,
        windows_configuration=None,
        lustre_configuration=properties.get("LustreConfiguration"),
        ontap_configuration=None,
        file_system_type_version=None,
        open_zfs_configuration=None,
    )
    return str(made.file_system_id)


def tag_file_systems(stack: Any) -> None:
    """With the stack's own tags, which moto gives to EC2's resources only."""
    tags = [{"Key": key, "Value": value} for key, value in stack.tags.items()]
    backend = fsx_backends[stack.account_id][stack.region_name]
    for resource in stack.stack_resources:
        if getattr(resource, "type", "") == FILE_SYSTEM:
            arn = backend.file_systems[resource.physical_resource_id].resource_arn
            backend.tagger.tag_resource(arn, tags)


def _accept_every_type() -> None:
    """Moto leaves an unknown type out, and the template's Fn::GetAtt of it then fails."""
    known: dict[str, type[Inert]] = {}

    def model_of(kind: str) -> Any:
        model = parsing.get_model_map().get(kind)
        if model is not None:
            return model
        if kind not in known:
            known[kind] = _inert_model(kind)
        return known[kind]

    module: Any = parsing
    module.resource_class_from_type = model_of


def _give_nested_outputs() -> None:
    """Fn::GetAtt [NestedStack, Outputs.X], which moto lacks; pcluster's queues are a nested stack."""
    stack: Any = models.Stack

    def attribute(self: Any, name: str) -> Any:
        wanted = name.removeprefix("Outputs.")
        for output in self.output_map.values():
            if output and output.key == wanted:
                return output.value
        raise UnformattedGetAttTemplateException()

    stack.get_cfn_attribute = attribute


def _let_errors_out() -> None:
    """Moto's ResourceMap.get takes a KeyError from within a resource for "no such resource"."""
    resources: Any = parsing.ResourceMap

    def get(self: Any, key: str, default: Any = None) -> Any:
        known = key in self._parsed_resources or key in self._resource_json_map
        return self[key] if known else default

    resources.get = get
