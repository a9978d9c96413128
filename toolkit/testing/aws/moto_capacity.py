"""Moto lacks capacity reservations and DescribePlacementGroups; pcluster and our own checks read both.

Without them DescribeCapacityReservations answers 500, which pcluster tells as "Unable to parse response".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.responses import EC2Response

from toolkit.testing.aws.account import SEED_PREFIX


@dataclass
class Capacity:
    """What one account has in one region."""

    reservations: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)


def capacity_of(backend: EC2Backend) -> Capacity:
    # Kept on moto's backend, so that moto's reset forgets it with everything else.
    held: dict[str, Any] = vars(backend)
    capacity: Capacity = held.setdefault("standin_capacity", Capacity())
    return capacity


class ReservationNotFound(EC2ClientError):
    def __init__(self, name: str) -> None:
        super().__init__(
            "InvalidCapacityReservationId.NotFound", f"The capacity reservation '{name}' does not exist"
        )


class GroupNotFound(EC2ClientError):
    def __init__(self, name: str) -> None:
        super().__init__("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")


def create_capacity_reservation(self: Any) -> ActionResult:
    tags = self._parse_tag_specification().get("capacity-reservation", {})
    seeded = {
        name.removeprefix(SEED_PREFIX): tags.pop(name) for name in list(tags) if name.startswith(SEED_PREFIX)
    }
    capacity = capacity_of(self.ec2_backend)
    name = seeded.get("id") or f"cr-{len(capacity.reservations) + 1:017x}"
    count = int(self._get_param("InstanceCount") or 1)
    state = seeded.get("state", "active")
    arn = f"arn:aws:ec2:{self.region}:{self.current_account}:capacity-reservation/{name}"
    reservation = {
        "CapacityReservationId": name,
        "OwnerId": self.current_account,
        "CapacityReservationArn": arn,
        "InstanceType": self._get_param("InstanceType"),
        "InstancePlatform": self._get_param("InstancePlatform") or "Linux/UNIX",
        "AvailabilityZone": self._get_param("AvailabilityZone"),
        "Tenancy": "default",
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count if state == "active" else 0,
        "EbsOptimized": True,
        "EphemeralStorage": False,
        "State": state,
        "StartDate": datetime.now(UTC),
        "CreateDate": datetime.now(UTC),
        "EndDateType": self._get_param("EndDateType") or "unlimited",
        "InstanceMatchCriteria": self._get_param("InstanceMatchCriteria") or "open",
        "ReservationType": seeded.get("type", "default"),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    if group := self._get_param("PlacementGroupArn"):
        reservation["PlacementGroupArn"] = group
    capacity.reservations[name] = reservation
    return ActionResult({"CapacityReservation": reservation})


def describe_capacity_reservations(self: Any) -> ActionResult:
    known = capacity_of(self.ec2_backend).reservations
    names = self._get_param("CapacityReservationIds", []) or list(known)
    for name in names:
        if name not in known:
            raise ReservationNotFound(name)
    chosen = [_as_of_now(known[name], self.ec2_backend) for name in names]
    for wanted in self._get_param("Filters", []) or []:
        key = "".join(word.capitalize() for word in wanted["Name"].split("-"))
        chosen = [each for each in chosen if each.get(key) in wanted["Values"]]
    return ActionResult({"CapacityReservations": chosen})


def _as_of_now(reservation: dict[str, Any], backend: Any) -> dict[str, Any]:
    """With what is free: all but the instances that run in it."""
    if reservation["State"] != "active":
        return reservation
    used = sum(
        getattr(instance, "capacity_reservation_id", None) == reservation["CapacityReservationId"]
        and instance._state.name in ("pending", "running")
        for group in backend.reservations.values()
        for instance in group.instances
    )
    return {**reservation, "AvailableInstanceCount": reservation["TotalInstanceCount"] - used}


def cancel_capacity_reservation(self: Any) -> ActionResult:
    known = capacity_of(self.ec2_backend).reservations
    name = self._get_param("CapacityReservationId")
    if name not in known:
        raise ReservationNotFound(name)
    known[name].update(State="cancelled", AvailableInstanceCount=0)
    return ActionResult({"Return": True})


def create_placement_group(self: Any) -> ActionResult:
    groups = capacity_of(self.ec2_backend).groups
    name = self._get_param("GroupName")
    groups[name] = {
        "GroupName": name,
        "State": "available",
        "Strategy": self._get_param("Strategy") or "cluster",
        "GroupId": f"pg-{len(groups) + 1:017x}",
        "GroupArn": f"arn:aws:ec2:{self.region}:{self.current_account}:placement-group/{name}",
    }
    return ActionResult({"PlacementGroup": groups[name]})


def describe_placement_groups(self: Any) -> ActionResult:
    groups = capacity_of(self.ec2_backend).groups
    names = self._get_param("GroupNames", []) or list(groups)
    for name in names:
        if name not in groups:
            raise GroupNotFound(name)
    return ActionResult({"PlacementGroups": [groups[name] for name in names]})


def delete_placement_group(self: Any) -> ActionResult:
    name = self._get_param("GroupName")
    if capacity_of(self.ec2_backend).groups.pop(name, None) is None:
        raise GroupNotFound(name)
    return ActionResult({})


def install() -> None:
    response: Any = EC2Response
    for action in (
        create_capacity_reservation,
        describe_capacity_reservations,
        cancel_capacity_reservation,
        create_placement_group,
        describe_placement_groups,
        delete_placement_group,
    ):
        setattr(response, action.__name__, action)
