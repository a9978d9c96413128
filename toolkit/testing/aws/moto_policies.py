"""The policies that AWS manages: moto reads its 5 MB of them anew at each reset, for every partition."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.models import AWSManagedPolicy, IAMBackend


def install() -> None:
    backend: Any = IAMBackend

    def policies(self: Any) -> list[AWSManagedPolicy]:
        return [copy.copy(policy) for policy in _built(self.account_id, self.region_name)]

    backend._init_aws_policies = policies


@functools.cache
def _parsed() -> dict[str, dict[str, Any]]:
    parsed: dict[str, dict[str, Any]] = json.loads(aws_managed_policies_data)
    return parsed


@functools.cache
def _built(account_id: str, region_name: str) -> tuple[AWSManagedPolicy, ...]:
    make = AWSManagedPolicy.from_data
    return tuple(make(name, account_id, region_name, data) for name, data in _parsed().items())
