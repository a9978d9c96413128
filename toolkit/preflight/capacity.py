"""Checks of where the GPU nodes come from: reservation, capacity block, placement group, quota."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from toolkit.plan.aws_facts import quota_code
from toolkit.plan.instance_type import known_instance_types
from toolkit.preflight.problem import Problem
from toolkit.preflight.subject import Check, Subject

RESERVATION = "target.capacity.reservation"
KIND = "target.capacity.kind"
GROUP = "target.capacity.placement_group"
# EC2 starts to end the instances of a capacity block 30 minutes before its end (EC2 guide, Capacity Blocks).
BLOCK_ENDS_EARLY = timedelta(minutes=30)


def reservation_exists(s: Subject) -> Iterator[Problem]:
    if s.plan.gpu.reservation and s.reservation is None:
        yield s.error(
            RESERVATION,
            f"there is no such capacity reservation in {s.region} of account {s.facts.account}",
            f"`aws ec2 describe-capacity-reservations --region {s.region}` lists those there are",
        )


def reservation_type(s: Subject) -> Iterator[Problem]:
    found, wanted = s.reservation, s.plan.gpu.instance.name
    if found and found.instance_type != wanted:
        yield s.error(
            RESERVATION,
            f"is for {found.instance_type}, but target.gpu.instance_type is {wanted}",
            "name a reservation of that type, or change target.gpu.instance_type",
        )


def reservation_zone(s: Subject) -> Iterator[Problem]:
    found, subnet = s.reservation, s.compute_subnet
    if found and subnet and found.zone != subnet.zone:
        yield s.error(
            RESERVATION,
            f"is in {found.zone}, but target.network.compute_subnet {subnet.id} is in {subnet.zone}",
            f"name a private subnet in {found.zone}",
        )


def reservation_count(s: Subject) -> Iterator[Problem]:
    found, queue = s.reservation, s.plan.gpu
    if found and found.total < queue.max_nodes:
        yield s.error(
            RESERVATION,
            f"holds {_count(found.total)}, but target.gpu.max_nodes is {queue.max_nodes}",
            "lower target.gpu.max_nodes (and min_nodes), or enlarge the reservation",
        )


def reservation_free(s: Subject) -> Iterator[Problem]:
    found, queue = s.reservation, s.plan.gpu
    if s.updates or not found or found.total < queue.max_nodes or found.state != "active":
        return
    if found.available < queue.min_nodes:
        yield s.error(
            RESERVATION,
            f"has {_count(found.available)} free of {found.total}, but target.gpu.min_nodes is "
            f"{queue.min_nodes}",
            "end the instances that run in it (`aws ec2 describe-instances --filters "
            f"Name=capacity-reservation-id,Values={found.id}`), or lower target.gpu.min_nodes",
        )


def reservation_state(s: Subject) -> Iterator[Problem]:
    found = s.reservation
    if not found or found.state == "active":
        return
    waits = found.state in ("scheduled", "pending", "assessing", "delayed", "payment-pending")
    what = "capacity block" if found.kind == "capacity-block" else "reservation"
    begins = f"; it begins {_time(found.starts)}" if waits and found.starts else ""
    yield s.error(
        RESERVATION,
        f"this {what} is {found.state}, not active{begins}",
        "create the cluster when it is active" if waits else "name an active reservation",
    )


def reservation_end(s: Subject) -> Iterator[Problem]:
    found = s.reservation
    if not found or not found.ends or found.state != "active":
        return
    block = found.kind == "capacity-block"
    stops = found.ends - (BLOCK_ENDS_EARLY if block else timedelta())
    left = stops - s.facts.now
    key, minutes = _longest_job(s)
    how = f"AWS ends its nodes from {_time(stops)} on" if block else f"ends {_time(stops)}"
    if left <= timedelta():
        yield s.error(RESERVATION, f"{how}, which has passed", "name a reservation that lasts")
    elif left < timedelta(minutes=minutes):
        yield s.warning(
            RESERVATION,
            f"{how}, in {left.total_seconds() / 3600:.1f} h, but {key} allows jobs {minutes} minutes",
            f"prolong it, or lower {key}",
        )


def reservation_criteria(s: Subject) -> Iterator[Problem]:
    found = s.reservation
    if found and found.criteria != "targeted":
        yield s.warning(
            RESERVATION,
            f"is {found.criteria}, not targeted: any {found.instance_type} of the account may take its place",
            f"`aws ec2 modify-capacity-reservation --instance-match-criteria targeted "
            f"--capacity-reservation-id {found.id}`, or make a targeted one",
        )


def reservation_tenancy(s: Subject) -> Iterator[Problem]:
    found = s.reservation
    if found and found.tenancy != "default":
        yield s.error(
            RESERVATION,
            f"is for {found.tenancy} tenancy, but ParallelCluster starts nodes with default tenancy",
            "make a reservation with default tenancy",
        )


def reservation_platform(s: Subject) -> Iterator[Problem]:
    found = s.reservation
    if found and found.platform != "Linux/UNIX":
        yield s.error(
            RESERVATION,
            f"is for platform {found.platform}, but the nodes run Ubuntu, which is Linux/UNIX to EC2",
            "make a reservation for Linux/UNIX",
        )


def kind_fits_reservation(s: Subject) -> Iterator[Problem]:
    found, kind = s.reservation, s.target.capacity.kind
    if found and found.kind == "capacity-block" and kind != "capacity-block":
        yield s.error(
            KIND,
            f"{found.id} is a capacity block, which can't be used as an on-demand reservation",
            "set target.capacity.kind: capacity-block",
        )
    if found and found.kind != "capacity-block" and kind == "capacity-block":
        yield s.error(
            KIND,
            f"{found.id} is an on-demand reservation, not a capacity block",
            "set target.capacity.kind: reservation",
        )


def block_size(s: Subject) -> Iterator[Problem]:
    queue = s.plan.gpu
    if queue.capacity_type == "CAPACITY_BLOCK" and queue.min_nodes != queue.max_nodes:
        yield s.error(
            "target.gpu.min_nodes",
            f"with a capacity block min_nodes and max_nodes ({queue.max_nodes}) must be equal",
            f"set target.gpu.min_nodes to {queue.max_nodes}",
        )


def kind_is_sold(s: Subject) -> Iterator[Problem]:
    instance, kind = s.plan.gpu.instance, s.target.capacity.kind
    needed = "on-demand" if kind == "reservation" else kind
    if instance.usage_classes and needed not in instance.usage_classes:
        yield s.error(
            KIND,
            f"{instance.name} is sold as {', '.join(instance.usage_classes)} only",
            "choose one of these kinds, or another target.gpu.instance_type",
        )


def unreserved(s: Subject) -> Iterator[Problem]:
    queue, kind = s.plan.gpu, s.target.capacity.kind
    if kind in ("on-demand", "spot") and queue.instance.gpus >= 8:
        yield s.warning(
            KIND,
            f"{queue.max_nodes} x {queue.instance.name} are not reserved: creation waits for capacity, and "
            "fails where there is none"
            + (", and nodes may be taken away at any time" if kind == "spot" else ""),
            "reserve them (an ODCR or a capacity block), and name it in target.capacity.reservation",
        )


def placement_group_exists(s: Subject) -> Iterator[Problem]:
    name = s.plan.gpu.placement_group
    if not name:
        return
    found = s.asked(s.facts.placement_groups, name)
    if found is None or found.state != "available":
        yield s.error(
            GROUP,
            f"there is no placement group of that name in {s.region}"
            if found is None
            else f"the placement group is {found.state}",
            "leave target.capacity.placement_group out, or name one that "
            f"`aws ec2 describe-placement-groups --region {s.region}` shows as available",
        )
    elif found.strategy != "cluster":
        yield s.warning(
            GROUP,
            f"has strategy {found.strategy}, which keeps nodes apart; EFA wants them close",
            "name a placement group with strategy cluster, or none",
        )


def placement_group_fits_reservation(s: Subject) -> Iterator[Problem]:
    found, given = s.reservation, s.plan.gpu.placement_group
    if not found or found.group_name == given:
        return
    if found.group_name is None:
        yield s.warning(
            GROUP,
            f"{found.id} belongs to no placement group: nodes may not start for want of capacity inside the "
            "group, though the reservation has free places",
            "leave target.capacity.placement_group out, as published",
        )
        return
    yield s.error(
        GROUP,
        f"{found.id} was made in placement group {found.group_name}; nodes outside it can't use it",
        f"set target.capacity.placement_group: {found.group_name}",
    )


def quota(s: Subject) -> Iterator[Problem]:
    """A reservation took its vCPUs from the quota when it was made, so its nodes are not counted here."""
    needs: dict[str, list[tuple[str, int]]] = {}
    for key, code, vcpus in _running_vcpus(s):
        needs.setdefault(code, []).append((key, vcpus))
    for code, parts in needs.items():
        found, needed = s.asked(s.facts.quotas, code), sum(vcpus for _, vcpus in parts)
        if found and needed > found.vcpus:
            yield s.error(
                parts[-1][0],
                f"{needed} vCPUs are needed, but the quota {found.name} ({code}) allows {found.vcpus:g}",
                f"`aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} "
                f"--desired-value {needed} --region {s.region}`",
            )


def _running_vcpus(s: Subject) -> Iterator[tuple[str, str, int]]:
    """(setting, quota's code, vCPUs) of all nodes that come from no reservation."""
    head = known_instance_types().get(s.plan.head.instance_type)
    parts = [("target.head.instance_type", head, 1)] if head else []
    parts += [(f"{queue.setting}.max_nodes", queue.instance, queue.max_nodes) for queue in s.plan.queues]
    for key, instance, nodes in parts:
        gpu = key.startswith(s.plan.gpu.setting)
        if gpu and s.plan.gpu.reservation:
            continue
        code = quota_code(instance.name, spot=gpu and s.plan.gpu.capacity_type == "SPOT")
        if code:
            yield key, code, instance.vcpus * nodes


def _longest_job(s: Subject) -> tuple[str, int]:
    """The setting with the longest time limit of the deployment's jobs, and its minutes."""
    limits = {
        "legs.prefill.time_limit_minutes": s.deployment.legs.prefill.time_limit_minutes,
        "legs.decode.time_limit_minutes": s.deployment.legs.decode.time_limit_minutes,
        "router.time_limit_minutes": s.deployment.router.time_limit_minutes,
        "sweep.time_limit_minutes": s.deployment.sweep.time_limit_minutes,
    }
    key = max(limits, key=lambda name: limits[name])
    return key, limits[key]


def _count(instances: int) -> str:
    return f"{instances} instance" + "s" * (instances != 1)


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


CHECKS: tuple[Check, ...] = (
    reservation_exists,
    reservation_state,
    kind_fits_reservation,
    reservation_type,
    reservation_zone,
    reservation_count,
    reservation_free,
    reservation_end,
    reservation_criteria,
    reservation_tenancy,
    reservation_platform,
    block_size,
    kind_is_sold,
    unreserved,
    placement_group_exists,
    placement_group_fits_reservation,
    quota,
)
