"""What ParallelCluster's command line answers, as values: its JSON documents read once, here.

Field names are those of the OpenAPI document inside aws-parallelcluster 3.14.2 and 3.16.1
(pcluster/api/openapi/openapi.yaml). Times are aware datetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Document = Mapping[str, Any]

DRY_RUN_PASSED = "Request would have succeeded, but DryRun flag is set."


@dataclass(frozen=True)
class ValidationMessage:
    """One word of a validator: `level` is INFO, WARNING or ERROR, `type` the validator's name."""

    level: str
    type: str
    message: str

    def __str__(self) -> str:
        return f"{self.level} {self.type}: {self.message}"


@dataclass(frozen=True)
class Change:
    """One changed value of an update, with the reason why it can't be updated, if so."""

    parameter: str
    current: str
    requested: str
    refusal: str = ""

    def __str__(self) -> str:
        change = f"{self.parameter}: {self.current} -> {self.requested}"
        return f"{change} ({self.refusal})" if self.refusal else change


@dataclass(frozen=True)
class Outcome:
    """Answer to create, update or build. `accepted` is False only where there is nothing to do (an update
    without changes) and inside a PclusterRefused."""

    accepted: bool
    message: str
    validation: tuple[ValidationMessage, ...] = ()
    change_set: tuple[Change, ...] = ()


@dataclass(frozen=True)
class ClusterSummary:
    name: str
    status: str
    stack_status: str
    stack_arn: str
    version: str
    region: str


@dataclass(frozen=True)
class Instance:
    """`node_type` is HeadNode, ComputeNode or LoginNode; `queue` and `public_ip` are empty where none."""

    instance_id: str
    instance_type: str
    state: str
    node_type: str
    queue: str
    private_ip: str
    public_ip: str
    launched: datetime


@dataclass(frozen=True)
class ReportedFailure:
    """pcluster's own reading of a failed creation (`failures` of describe-cluster)."""

    code: str
    reason: str


@dataclass(frozen=True)
class Cluster:
    """describe-cluster. `fleet_status` is RUNNING, STOPPED, PROTECTED, UNKNOWN, ..."""

    name: str
    status: str
    stack_status: str
    stack_arn: str
    version: str
    region: str
    created: datetime
    updated: datetime
    fleet_status: str
    head: Instance | None
    failures: tuple[ReportedFailure, ...]
    tags: Mapping[str, str]
    config_url: str


@dataclass(frozen=True)
class Fleet:
    status: str
    updated: datetime | None


@dataclass(frozen=True)
class StackEvent:
    event_id: str
    time: datetime
    resource: str
    resource_type: str
    physical_id: str
    status: str
    reason: str


@dataclass(frozen=True)
class LogStream:
    name: str
    last_event: datetime | None


@dataclass(frozen=True)
class LogEvent:
    time: datetime
    message: str


@dataclass(frozen=True)
class Image:
    """describe-image and list-images. `status` is BUILD_IN_PROGRESS, BUILD_FAILED, BUILD_COMPLETE, DELETE_*;
    `builder_status` and `reason` are EC2 Image Builder's; AMI values are empty until there is one."""

    image_id: str
    version: str
    region: str
    status: str
    stack_status: str = ""
    builder_status: str = ""
    reason: str = ""
    log_arn: str = ""
    ami_id: str = ""
    ami_name: str = ""
    ami_state: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OfficialImage:
    ami_id: str
    name: str
    os: str
    architecture: str
    version: str


def outcome(document: Document, *, accepted: bool) -> Outcome:
    messages = document.get("validationMessages") or document.get("configurationValidationErrors") or ()
    changes = document.get("updateValidationErrors") or document.get("changeSet") or ()
    return Outcome(
        accepted=accepted,
        message=document.get("message", ""),
        validation=tuple(
            ValidationMessage(each.get("level", "ERROR"), each.get("type", ""), each.get("message", ""))
            for each in messages
        ),
        change_set=tuple(
            Change(
                each.get("parameter", ""),
                str(each.get("currentValue", "")),
                str(each.get("requestedValue", "")),
                each.get("message", ""),
            )
            for each in changes
        ),
    )


def cluster_summary(document: Document) -> ClusterSummary:
    return ClusterSummary(
        name=document["clusterName"],
        status=document["clusterStatus"],
        stack_status=document["cloudformationStackStatus"],
        stack_arn=document["cloudformationStackArn"],
        version=document["version"],
        region=document["region"],
    )


def cluster(document: Document) -> Cluster:
    head = document.get("headNode")
    return Cluster(
        name=document["clusterName"],
        status=document["clusterStatus"],
        stack_status=document["cloudFormationStackStatus"],
        stack_arn=document["cloudformationStackArn"],
        version=document["version"],
        region=document["region"],
        created=_time(document["creationTime"]),
        updated=_time(document["lastUpdatedTime"]),
        fleet_status=document["computeFleetStatus"],
        head=instance({**head, "nodeType": "HeadNode"}) if head else None,
        failures=tuple(
            ReportedFailure(each.get("failureCode", ""), each.get("failureReason", ""))
            for each in document.get("failures") or ()
        ),
        tags=_tags(document["tags"]),
        config_url=document["clusterConfiguration"].get("url", ""),
    )


def instance(document: Document) -> Instance:
    return Instance(
        instance_id=document["instanceId"],
        instance_type=document["instanceType"],
        state=document["state"],
        node_type=document["nodeType"],
        queue=document.get("queueName", ""),
        private_ip=document["privateIpAddress"],
        public_ip=document.get("publicIpAddress", ""),
        launched=_time(document["launchTime"]),
    )


def fleet(document: Document) -> Fleet:
    updated = document.get("lastStatusUpdatedTime")
    return Fleet(document["status"], _time(updated) if updated else None)


def stack_event(document: Document) -> StackEvent:
    return StackEvent(
        event_id=document["eventId"],
        time=_time(document["timestamp"]),
        resource=document["logicalResourceId"],
        resource_type=document["resourceType"],
        physical_id=document.get("physicalResourceId", ""),
        status=document["resourceStatus"],
        reason=document.get("resourceStatusReason", ""),
    )


def log_stream(document: Document) -> LogStream:
    last = document.get("lastEventTimestamp")
    return LogStream(document["logStreamName"], _time(last) if last else None)


def log_event(document: Document) -> LogEvent:
    return LogEvent(_time(document["timestamp"]), document["message"])


def image(document: Document) -> Image:
    ami: Document = document.get("ec2AmiInfo") or {}
    reasons = (
        document.get("imagebuilderImageStatusReason"),
        document.get("cloudformationStackStatusReason"),
    )
    return Image(
        image_id=document["imageId"],
        version=document["version"],
        region=document["region"],
        status=document["imageBuildStatus"],
        stack_status=document.get("cloudformationStackStatus") or "",
        builder_status=document.get("imagebuilderImageStatus") or "",
        reason=" ".join(reason for reason in reasons if reason),
        log_arn=document.get("imageBuildLogsArn") or "",
        ami_id=ami.get("amiId", ""),
        ami_name=ami.get("amiName", ""),
        ami_state=ami.get("state", ""),
        tags=_tags(ami.get("tags") or document.get("cloudformationStackTags") or ()),
    )


def official_image(document: Document) -> OfficialImage:
    return OfficialImage(
        ami_id=document["amiId"],
        name=document["name"],
        os=document["os"],
        architecture=document["architecture"],
        version=document["version"],
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _tags(tags: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in tags}
