"""What AWS says of a cluster, read for the doctor: each part by itself, None where it can't be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from toolkit.errors import ToolkitError
from toolkit.flows.provision import Cloud
from toolkit.plan.aws_side import AwsSide, InstanceSide, ReservationSide
from toolkit.remote.aws_instances import ClusterInstance, cluster_instances
from toolkit.remote.aws_reservation import ReservationState, reservation_state
from toolkit.remote.aws_stack import stack_state

T = TypeVar("T")


def aws_side(cloud: Cloud) -> AwsSide:
    """Never raises: what can't be read is told to `cloud.tell`, and is None."""

    def read(what: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except ToolkitError as error:
            cloud.tell(f"not read, {what}: {error.what}")
            return None

    stack = read("the stack", lambda: stack_state(cloud.name, cloud.region))
    # Without a stack there is nothing that pcluster could describe.
    cluster = None
    if stack:
        made_by = stack.version
        cluster = read("the compute fleet", lambda: cloud.pcluster_for(made_by).describe_cluster(cloud.name))
    instances = read("the instances", lambda: cluster_instances(cloud.name, cloud.region))
    identity = cloud.target.capacity.reservation
    reservation = (
        read("the reservation", lambda: reservation_state(identity, cloud.region)) if identity else None
    )
    return AwsSide(
        stack_status=stack.status if stack else None,
        fleet_status=cluster.fleet_status if cluster else None,
        instances=None if instances is None else tuple(map(_instance, instances)),
        reservation=_reservation(reservation) if reservation else None,
    )


def _instance(found: ClusterInstance) -> InstanceSide:
    return InstanceSide(
        instance_id=found.id,
        state=found.state,
        node_type=found.role,
        queue=found.queue or None,
        private_ip=found.private_ip or None,
        reservation=found.reservation or None,
        launched_at=found.launched.timestamp(),
    )


def _reservation(found: ReservationState) -> ReservationSide:
    return ReservationSide(
        reservation_id=found.id,
        state=found.state,
        instance_type=found.instance_type,
        availability_zone=found.zone,
        total=found.total,
        available=found.available,
        ends_at=found.ends.timestamp() if found.ends else None,
    )
