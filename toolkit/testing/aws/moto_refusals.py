"""What a service refuses while a stack is made, such as a name that exists.

AWS lets that resource fail, and with it the stack. Moto lets the call of CreateStack fail, with the service's
error, which CloudFormation's clients can't even parse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import moto.cloudformation.models as models
import moto.cloudformation.parsing as parsing
from moto.cloudformation.exceptions import CloudFormationError
from moto.core.exceptions import ServiceException
from werkzeug.exceptions import HTTPException  # moto's errors of old are all of this kind

from toolkit.testing.aws.moto_resources import Inert
from toolkit.testing.aws.timeline import Fault

_NAME_IS_TAKEN = re.compile(r"AlreadyExists|Duplicate|InUse")


def install() -> None:
    _keep_refusals()
    _stop_when_made()
    _fail_with_the_nested_stack()


def fault_of(stack: Any) -> Fault | None:
    """The resource that was refused first, if one was."""
    for name, refusal in _refusals(stack.resource_map).items():
        return Fault(name, _reason(refusal))
    return None


def _refusals(resources: Any) -> dict[str, Exception]:
    held: dict[str, Any] = vars(resources)
    refusals: dict[str, Exception] = held.setdefault("standin_refusals", {})
    return refusals


def _reason(refusal: Any) -> str:
    code = getattr(refusal, "error_type", None) or refusal.code
    handler = "AlreadyExists" if _NAME_IS_TAKEN.search(code) else "GeneralServiceException"
    return (
        f'Resource handler returned message: "{refusal.message}" '
        f"(RequestToken: 00000000-0000-4000-8000-000000000001, HandlerErrorCode: {handler})"
    )


def _keep_refusals() -> None:
    """What is wrong with the template itself stays CreateStack's error, and an update's is UpdateStack's."""
    module: Any = parsing
    original = module.parse_and_create_resource

    def create(name: str, document: Mapping[str, Any], resources: Any, **place: str) -> Any:
        try:
            return original(name, document, resources, **place)
        except (ServiceException, HTTPException) as refusal:
            if isinstance(refusal, CloudFormationError) or "standin_made" in vars(resources):
                raise
            _refusals(resources)[name] = refusal
            # In its place, for what refers to it; taking it down leaves what has the name.
            return _placeholder(name, document["Type"])

    module.parse_and_create_resource = create


def _placeholder(name: str, kind: str) -> Inert:
    placeholder: Any = Inert(name, "")
    placeholder.logical_resource_id, placeholder.cf_resource_type = name, kind
    made: Inert = placeholder
    return made


def _stop_when_made() -> None:
    resources: Any = parsing.ResourceMap
    original = resources.create

    def create(self: Any, template: dict[str, Any]) -> bool:
        ready: bool = original(self, template)
        self.standin_made = True
        return ready

    resources.create = create


def _fail_with_the_nested_stack() -> None:
    """What was refused in it fails that resource of the outer one; the nested one is taken down."""
    stack: Any = models.Stack
    original = stack.create_from_cloudformation_json.__func__

    def create(
        cls: Any, /, name: str, document: Mapping[str, Any], account_id: str, region_name: str, **rest: Any
    ) -> Any:
        made = original(cls, name, document, account_id, region_name, **rest)
        if refusals := _refusals(made.resource_map):
            models.cloudformation_backends[account_id][region_name].delete_stack(made.stack_id)
            raise next(iter(refusals.values()))
        return made

    stack.create_from_cloudformation_json = classmethod(create)
