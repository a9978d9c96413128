"""What AWS says of a cluster, for the doctor: filled in by whoever may ask AWS. None means: not known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InstanceSide:
    """An EC2 instance of the cluster. `state`: EC2's word, such as running; `launched_at`: Unix seconds."""

    instance_id: str
    state: str
    node_type: str  # ParallelCluster's tag: HeadNode, Compute, LoginNode
    queue: str | None = None
    private_ip: str | None = None
    reservation: str | None = None  # id of the capacity reservation it runs in
    launched_at: float | None = None


@dataclass(frozen=True)
class ReservationSide:
    """A capacity reservation; counts are instances. `ends_at`: Unix seconds, None where it has no end."""

    reservation_id: str
    state: str  # EC2's word, such as active, expired, cancelled
    instance_type: str
    availability_zone: str
    total: int
    available: int
    ends_at: float | None = None


@dataclass(frozen=True)
class AwsSide:
    """`stack_status`: CloudFormation's word; `fleet_status`: ParallelCluster's, such as PROTECTED."""

    stack_status: str | None = None
    fleet_status: str | None = None
    instances: tuple[InstanceSide, ...] | None = None
    reservation: ReservationSide | None = None
