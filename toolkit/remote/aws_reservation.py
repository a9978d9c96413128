"""A capacity reservation or capacity block as it stands now: how much of it is used."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from toolkit.remote.aws_session import aws_errors, client


@dataclass(frozen=True)
class ReservationState:
    """Counts are instances; `ends` is None for one without an end."""

    id: str
    state: str
    instance_type: str
    zone: str
    total: int
    available: int
    ends: datetime | None


def reservation_state(identity: str, region: str) -> ReservationState:
    """ToolkitError if there is none of that id, or it can't be read."""
    with aws_errors(f"reading capacity reservation {identity}"):
        ec2 = client("ec2", region)
        answer = ec2.describe_capacity_reservations(CapacityReservationIds=[identity])
    document = answer["CapacityReservations"][0]
    return ReservationState(
        id=document["CapacityReservationId"],
        state=document["State"],
        instance_type=document["InstanceType"],
        zone=document["AvailabilityZone"],
        total=document["TotalInstanceCount"],
        available=document["AvailableInstanceCount"],
        ends=document.get("EndDate"),
    )
