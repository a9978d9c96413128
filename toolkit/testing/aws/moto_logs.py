"""CloudWatch Logs: where pcluster notices what moto does, and how fast the stand-in is.

pcluster names a cluster's log group by the minute, `.../NAME-202601010000`, and the group outlives the stack.
AWS takes minutes to the next cluster of that name. Here it may come within the same one, so the group that
the last one left is dated back, as if the minutes had passed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import moto.logs.models as moto_logs
from moto.cloudformation.models import cloudformation_backends
from moto.logs.models import LogGroup, logs_backends

_MINUTE = "%Y%m%d%H%M"
_DIGITS = 12
_OF_A_MINUTE = re.compile(rf"/aws/parallelcluster/.+-\d{{{_DIGITS}}}")


def install() -> None:
    _date_back_what_a_stack_left()
    _export_under_the_task()


def _date_back_what_a_stack_left() -> None:
    """Any other group that has the name stays, and moto refuses the new one, as AWS does."""
    model: Any = LogGroup
    original = model.create_from_cloudformation_json.__func__

    def create(
        cls: Any, /, name: str, document: Mapping[str, Any], account_id: str, region_name: str, **rest: Any
    ) -> Any:
        backend = logs_backends[account_id][region_name]
        known = backend.groups.get(name)
        if known and _OF_A_MINUTE.fullmatch(name) and _was_left(known, account_id, region_name):
            _date_back(backend, name)
        return original(cls, name, document, account_id, region_name, **rest)

    model.create_from_cloudformation_json = classmethod(create)


def _was_left(group: Any, account_id: str, region_name: str) -> bool:
    deleted = cloudformation_backends[account_id][region_name].deleted_stacks.values()
    # Not stack.stack_resources: moto makes again what of it is gone.
    return any(each is group for stack in deleted for each in stack.resource_map._parsed_resources.values())


def _date_back(backend: Any, name: str) -> None:
    """By a minute, and before it the one that has that minute's name."""
    minute = datetime.strptime(name[-_DIGITS:], _MINUTE) - timedelta(minutes=1)
    earlier = f"{name[:-_DIGITS]}{minute.strftime(_MINUTE)}"
    if earlier in backend.groups:
        _date_back(backend, earlier)
    group = backend.groups[earlier] = backend.groups.pop(name)
    group.name, old_arn = earlier, group.arn
    for each in (group, *group.streams.values()):
        each.arn = each.arn.replace(name, earlier)
    backend.tagger.copy_tags(old_arn, group.arn)
    backend.tagger.delete_all_tags_for_resource(old_arn)


def _export_under_the_task() -> None:
    """Log export: AWS writes PREFIX/TASK/STREAM, moto PREFIX/RANDOM/STREAM; pcluster seeks the first."""
    backend: Any = moto_logs.LogsBackend
    original = backend.create_export_task

    def export(self: Any, *rest: Any, **options: Any) -> Any:
        task = str(uuid.uuid4())

        class OneId:
            def uuid4(self) -> str:
                return task

        module: Any = moto_logs
        kept, module.mock_random = module.mock_random, OneId()
        try:
            return original(self, *rest, **options)
        finally:
            module.mock_random = kept

    backend.create_export_task = export
