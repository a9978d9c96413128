"""Plays clustermgtd's part in starting and stopping a compute fleet, a step each time the status is read.

As in aws-parallelcluster-node's clustermgtd (_manage_compute_fleet_status_transitions): a request becomes
STARTING or STOPPING, and that RUNNING or STOPPED when the nodes are there or gone.
"""

from __future__ import annotations

from typing import Any

from moto.cloudformation.models import cloudformation_backends
from moto.dynamodb.models import DynamoDBBackend

from toolkit.testing.aws import fleet
from toolkit.testing.aws.account import Clients
from toolkit.testing.aws.stories import tell

TABLE_PREFIX, KEY = "parallelcluster-", {"Id": {"S": "COMPUTE_FLEET"}}
NEXT = {
    "START_REQUESTED": "STARTING",
    "STARTING": "RUNNING",
    "STOP_REQUESTED": "STOPPING",
    "STOPPING": "STOPPED",
}


def install(clients: Clients) -> None:
    backend: Any = DynamoDBBackend
    original = backend.get_item

    def get_item(self: Any, table_name: str, keys: Any, *rest: Any, **options: Any) -> Any:
        item = original(self, table_name, keys, *rest, **options)
        if item is not None and keys == KEY and table_name.startswith(TABLE_PREFIX):
            _go_on(self, clients, table_name.removeprefix(TABLE_PREFIX), item)
        return item  # as it was before the step, which puts another

    backend.get_item = get_item


def _go_on(backend: Any, clients: Clients, cluster_name: str, item: Any) -> None:
    """Only a change that was requested goes on: a story's STARTING lasts."""
    asked = backend.__dict__.setdefault("standin_asked", set())
    status = item.to_json()["Attributes"]["Data"]["M"]["status"]["S"]
    if status.endswith("_REQUESTED"):
        asked.add(cluster_name)
    if cluster_name not in asked or status not in NEXT:
        asked.discard(cluster_name)
        return
    stacks = cloudformation_backends[backend.account_id][backend.region_name].stacks.values()
    cluster = fleet.Cluster(clients, next(each for each in stacks if each.name == cluster_name))
    cluster.set_status(NEXT[status])
    if status == "STOPPING":
        cluster.terminate_nodes()
    elif status == "STARTING":
        cluster.launch(tell("complete", cluster.setting()))
