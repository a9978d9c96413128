"""CloudFormation resources that moto does not model, so that pcluster's whole templates can be created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import moto.cloudformation.models as models
import moto.cloudformation.parsing as parsing
from moto.cloudformation.exceptions import UnformattedGetAttTemplateException
from moto.moto_api._internal import mock_random

from toolkit.testing.aws.moto_storage import MOUNT_NAME

_ATTRIBUTES = {
    ("AWS::FSx::FileSystem", "LustreMountName"): MOUNT_NAME,
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
        def create_from_cloudformation_json(cls, name: str, *_: Any, **__: Any) -> Inert:
            if kind == "AWS::FSx::FileSystem":  # pcluster checks the shape of the id
                name = f"fs-{mock_random.getrandbits(68):017x}"
            return cls(name, kind)

        @classmethod
        def update_from_cloudformation_json(cls, original_resource: Any, *_: Any, **__: Any) -> Any:
            return original_resource

        @classmethod
        def delete_from_cloudformation_json(cls, *_: Any, **__: Any) -> None:
            return None

    return Model


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
