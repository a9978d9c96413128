"""The part that ParallelCluster's own daemons play on a real cluster: nodes, logs and the fleet's status."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from toolkit.testing.aws.account import Clients
from toolkit.testing.aws.stories import Lines, Setting, Story

_TAG = "parallelcluster:"
_TAKEN_FROM_TEMPLATE = (
    *("ImageId", "InstanceType", "KeyName", "NetworkInterfaces", "CapacityReservationSpecification"),
    "MetadataOptions",
)


@dataclass(frozen=True)
class Node:
    """A static node of the configuration, as Slurm names it."""

    queue: str
    compute_resource: str
    number: int
    script: str

    @property
    def name(self) -> str:
        return f"{self.queue}-st-{self.compute_resource}-{self.number}"


class Cluster:
    def __init__(self, clients: Clients, stack: Any) -> None:
        self._clients = clients
        self._stack = stack
        self._name: str = stack.name

    def setting(self) -> Setting:
        """What a story about this cluster names."""
        config, head = self._config(), self._head()
        gpu = next(iter(self._nodes(config)), Node("none", "none", 1, ""))
        return Setting(
            head_id=head["InstanceId"] if head else "i-none",
            head_type=config["HeadNode"]["InstanceType"],
            zone=head["Placement"]["AvailabilityZone"] if head else "",
            head_script=_script(config["HeadNode"]),
            node_script=gpu.script,
            node=gpu.name,
            node_type=next(
                (
                    resource.get("InstanceType") or resource["Instances"][0]["InstanceType"]
                    for queue in config["Scheduling"]["SlurmQueues"]
                    for resource in queue["ComputeResources"]
                    if resource["Name"] == gpu.compute_resource
                ),
                "none",
            ),
            account=self._stack.account_id,
        )

    def write_head_logs(self, logs: Mapping[str, Lines]) -> None:
        head = self._head()
        for kind, lines in logs.items() if head else ():
            self._log(head, kind, lines)

    def launch(self, story: Story) -> None:
        """Starts the static nodes that are missing, if this story has any."""
        if not story.nodes:
            return
        running = {tags[f"{_TAG}node-name"] for tags, _ in self._compute() if f"{_TAG}node-name" in tags}
        for node in self._nodes(self._config()):
            if node.name in running:
                continue
            instance = self._start(node)
            self._log(instance, "cloud-init", ("Cloud-init v. 25.2 running 'modules:final'",))
            for kind, lines in story.node.items():
                self._log(instance, kind, lines)

    def set_status(self, status: str) -> None:
        if status:
            updated = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00:00")
            data = {"status": {"S": status}, "lastStatusUpdatedTime": {"S": updated}}
            item = {"Id": {"S": "COMPUTE_FLEET"}, "Data": {"M": data}}
            self._clients.dynamodb.put_item(TableName=f"parallelcluster-{self._name}", Item=item)

    def terminate(self) -> None:
        self._terminate(self._instances())

    def terminate_nodes(self) -> None:
        self._terminate(self._compute())

    def _terminate(self, instances: list[tuple[dict[str, str], dict[str, Any]]]) -> None:
        ids = [instance["InstanceId"] for _, instance in instances]
        if ids:
            self._clients.ec2.terminate_instances(InstanceIds=ids)

    def _config(self) -> dict[str, Any]:
        values = self._stack.stack_parameters
        key = f"{values['ArtifactS3RootDirectory']}/configs/cluster-config.yaml"
        stored = self._clients.s3.get_object(Bucket=values["ResourcesS3Bucket"], Key=key)["Body"].read()
        config: dict[str, Any] = yaml.safe_load(stored)
        return config

    def _nodes(self, config: Mapping[str, Any]) -> Iterator[Node]:
        for queue in config["Scheduling"]["SlurmQueues"]:
            for resource in queue["ComputeResources"]:
                for number in range(1, int(resource.get("MinCount") or 0) + 1):
                    yield Node(queue["Name"], resource["Name"], number, _script(queue))

    def _start(self, node: Node) -> dict[str, Any]:
        name = f"{self._name}-{node.queue}-{node.compute_resource}"
        versions = self._clients.ec2.describe_launch_template_versions(LaunchTemplateName=name)
        data = versions["LaunchTemplateVersions"][-1]["LaunchTemplateData"]
        tags = {
            **_tags_of(data),
            "Name": "Compute",
            f"{_TAG}cluster-name": self._name,
            f"{_TAG}node-type": "Compute",
            f"{_TAG}queue-name": node.queue,
            f"{_TAG}compute-resource-name": node.compute_resource,
            # Not one of pcluster's: by it the next launch knows which static nodes are there.
            f"{_TAG}node-name": node.name,
        }
        run = self._clients.ec2.run_instances(
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": key, "Value": tags[key]} for key in tags]}
            ],
            **{key: data[key] for key in _TAKEN_FROM_TEMPLATE if key in data},
        )
        instance: dict[str, Any] = run["Instances"][0]
        return instance

    def _instances(self) -> list[tuple[dict[str, str], dict[str, Any]]]:
        filters = [
            {"Name": f"tag:{_TAG}cluster-name", "Values": [self._name]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
        reservations = self._clients.ec2.describe_instances(Filters=filters)["Reservations"]
        return [
            ({tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}, instance)
            for reservation in reservations
            for instance in reservation["Instances"]
        ]

    def _head(self) -> dict[str, Any] | None:
        nodes = self._instances()
        return next((each for tags, each in nodes if tags.get(f"{_TAG}node-type") == "HeadNode"), None)

    def _compute(self) -> list[tuple[dict[str, str], dict[str, Any]]]:
        return [each for each in self._instances() if each[0].get(f"{_TAG}node-type") == "Compute"]

    def _log(self, instance: Mapping[str, Any] | None, kind: str, lines: Lines) -> None:
        if instance is None:
            return
        logs, group = self._clients.logs, self._stack.stack_parameters["ClusterCWLogGroup"]
        host = "ip-" + instance["PrivateIpAddress"].replace(".", "-")
        stream = f"{host}.{instance['InstanceId']}.{kind}"
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_stream(logGroupName=group, logStreamName=stream)
        now = int(time.time() * 1000)
        events = [{"timestamp": now + position, "message": line} for position, line in enumerate(lines)]
        logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


def _script(section: Mapping[str, Any]) -> str:
    action = section.get("CustomActions", {}).get("OnNodeConfigured", {})
    first = action.get("Sequence", [action])[0]
    return str(first.get("Script", "s3://bucket/script.sh"))


def _tags_of(data: Mapping[str, Any]) -> dict[str, str]:
    return {
        tag["Key"]: tag["Value"]
        for specification in data.get("TagSpecifications", [])
        if specification["ResourceType"] == "instance"
        for tag in specification["Tags"]
    }
