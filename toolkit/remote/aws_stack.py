"""A cluster's CloudFormation stack as boto3 tells it: its state, what happened in it, what it is made of.

pcluster tells the same, but takes seconds of CPU a call; this is asked every few seconds while a cluster is
created or deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import yaml
from botocore.exceptions import ClientError

from toolkit.remote.aws_session import aws_errors, client
from toolkit.remote.pcluster_answer import StackEvent

VERSION_TAG = "parallelcluster:version"
STACK_TYPE = "AWS::CloudFormation::Stack"


@dataclass(frozen=True)
class StackState:
    """`status` is CloudFormation's, such as CREATE_IN_PROGRESS; `version` is ParallelCluster's, empty for a
    stack that it did not make. `tags`: all of the stack's."""

    arn: str
    status: str
    reason: str
    created: datetime
    version: str
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def moving(self) -> bool:
        return self.status.endswith("_IN_PROGRESS")

    @property
    def creation_failed(self) -> bool:
        return self.status == "CREATE_FAILED" or self.status.startswith("ROLLBACK_")

    @property
    def usable(self) -> bool:
        """Created; an update that failed was taken back or left the cluster as it stands."""
        return self.status == "CREATE_COMPLETE" or self.status.startswith("UPDATE_")


@dataclass(frozen=True)
class StackResource:
    """`retained`: CloudFormation leaves it when it takes the stack down, after a failed creation too."""

    logical_id: str
    kind: str  # such as AWS::FSx::FileSystem
    physical_id: str
    status: str
    reason: str
    retained: bool = False


def stack_state(name_or_arn: str, region: str) -> StackState | None:
    """None if there is no such stack: a deleted one is found by its ARN only. ToolkitError if AWS can't be
    asked, as in every function here."""
    stack = _stack(name_or_arn, region)
    if stack is None:
        return None
    tags = {tag["Key"]: tag["Value"] for tag in stack.get("Tags", ())}
    return StackState(
        arn=stack["StackId"],
        status=stack["StackStatus"],
        reason=stack.get("StackStatusReason", ""),
        created=stack["CreationTime"],
        version=tags.get(VERSION_TAG, ""),
        tags=tags,
    )


def stack_events(name_or_arn: str, region: str) -> tuple[StackEvent, ...]:
    """What happened in the stack and those nested in it, oldest first; empty if there is no such stack."""
    events: list[StackEvent] = []
    waiting, seen = [name_or_arn], set[str]()
    while waiting:
        stack = waiting.pop()
        for raw in _pages("describe_stack_events", "StackEvents", stack, region):
            event = _event(raw)
            own = event.physical_id == raw["StackId"]
            # What a nested stack says of itself is told by the stack that it is in, too.
            if not own or stack == name_or_arn:
                events.append(event)
            nested = event.resource_type == STACK_TYPE and event.physical_id.startswith("arn:") and not own
            if nested and event.physical_id not in seen:
                seen.add(event.physical_id)
                waiting.append(event.physical_id)
    return tuple(sorted(events, key=lambda event: event.time))


def stack_resources(name_or_arn: str, region: str) -> tuple[StackResource, ...]:
    """What the stack and the stacks nested in it are made of; empty if there is no such stack."""
    found: list[StackResource] = []
    waiting = [name_or_arn]
    while waiting:
        stack = waiting.pop()
        resources = _pages("list_stack_resources", "StackResourceSummaries", stack, region)
        kept = _retained(stack, region) if resources else frozenset()
        for resource in resources:
            found.append(
                StackResource(
                    logical_id=resource["LogicalResourceId"],
                    kind=resource["ResourceType"],
                    physical_id=resource.get("PhysicalResourceId", ""),
                    status=resource["ResourceStatus"],
                    reason=resource.get("ResourceStatusReason", ""),
                    retained=resource["LogicalResourceId"] in kept,
                )
            )
            if found[-1].kind == STACK_TYPE and found[-1].physical_id.startswith("arn:"):
                waiting.append(found[-1].physical_id)
    return tuple(found)


def _retained(name_or_arn: str, region: str) -> frozenset[str]:
    """Names of the stack's resources that its template says to retain."""
    with aws_errors(f"reading the template of stack {name_or_arn}"):
        try:
            body = client("cloudformation", region).get_template(StackName=name_or_arn)["TemplateBody"]
        except ClientError as error:
            if _is_missing(error):
                return frozenset()
            raise
    # boto3 reads a template that is JSON, which pcluster's are from 3.0 on, and leaves YAML as text.
    template = yaml.safe_load(body) if isinstance(body, str) else body
    resources = template.get("Resources", {}).items()
    return frozenset(name for name, each in resources if each.get("DeletionPolicy") == "Retain")


def _stack(name_or_arn: str, region: str) -> Mapping[str, Any] | None:
    with aws_errors(f"reading stack {name_or_arn}"):
        try:
            answer = client("cloudformation", region).describe_stacks(StackName=name_or_arn)
        except ClientError as error:
            if _is_missing(error):
                return None
            raise
    stack: Mapping[str, Any] = answer["Stacks"][0]
    return stack


def _event(raw: Mapping[str, Any]) -> StackEvent:
    return StackEvent(
        event_id=raw["EventId"],
        time=raw["Timestamp"],
        resource=raw["LogicalResourceId"],
        resource_type=raw["ResourceType"],
        physical_id=raw.get("PhysicalResourceId", ""),
        status=raw["ResourceStatus"],
        reason=raw.get("ResourceStatusReason", ""),
    )


def _pages(operation: str, key: str, name_or_arn: str, region: str) -> list[Mapping[str, Any]]:
    with aws_errors(f"reading stack {name_or_arn}"):
        paginator = client("cloudformation", region).get_paginator(operation)
        try:
            return [each for page in paginator.paginate(StackName=name_or_arn) for each in page[key]]
        except ClientError as error:
            if _is_missing(error):
                return []
            raise


def _is_missing(error: ClientError) -> bool:
    told = error.response.get("Error", {})
    return told.get("Code") == "ValidationError" and "does not exist" in str(told.get("Message", ""))
