"""Where an image's build instance runs: the nodes' subnet, the cluster's own network, else the default VPC.

Reads only; flows/image_build.py makes the network that is found to be missing.
"""

from __future__ import annotations

from toolkit.errors import SettingsError, ToolkitError
from toolkit.plan.image_build import BuildPlace, settings_place
from toolkit.plan.network import NetworkPlan, plan_network
from toolkit.remote.aws_image import has_default_vpc, zone_of, zones_offering
from toolkit.remote.aws_network import NetworkIds, describe_network
from toolkit.remote.aws_reservation import reservation_state
from toolkit.settings.target import ParallelClusterTarget


def find_place(target: ParallelClusterTarget) -> tuple[BuildPlace, NetworkPlan | None]:
    """The place, and the network that has to be made for it, if one has to.

    That is so with target.network.create in a region without a default VPC: a NAT gateway costs by the hour,
    so none is made for a build that has another place. ToolkitError: no place, or the build's type is not
    offered there.
    """
    place = settings_place(target)
    network = None
    if not place.subnet and target.network.create:
        found = describe_network(target.cluster_name, target.region)
        if found and found.ids:
            place = own_place(found.ids)
        elif found or not has_default_vpc(target.region):
            network = plan_network(target, found.zone if found else _zone(target))
    elif not place.subnet and not has_default_vpc(target.region):
        raise ToolkitError(
            f"the build instance has no place: {target.region} has no default VPC, and the settings name no "
            "compute subnet with a security group.",
            next_step="set target.network.compute_subnet and target.network.security_groups (no inbound rule "
            "is needed), or target.network.create: true, or make a default VPC with "
            "`aws ec2 create-default-vpc`",
        )
    zone = network.zone if network else zone_of(place.subnet, target.region) if place.subnet else None
    _refuse_if_not_offered(target, zone)
    return place, network


def own_place(ids: NetworkIds) -> BuildPlace:
    return BuildPlace(ids.compute_subnet, (ids.security_group,))


def _zone(target: ParallelClusterTarget) -> str:
    """As for the cluster, which uses the network next: the reservation's, else the first with the types."""
    if target.capacity.reservation:
        return reservation_state(target.capacity.reservation, target.region).zone
    types = {
        target.head.instance_type,
        target.gpu.instance_type,
        target.router.instance_type,
        target.image.build_instance_type,
    }
    zones = frozenset.intersection(*(zones_offering(name, target.region) for name in types))
    if not zones:
        raise SettingsError(
            f"no availability zone of {target.region} offers all of {', '.join(sorted(types))}, so the "
            "network's zone can't be chosen.",
            next_step="make the subnets yourself and name them in target.network, or choose other types",
        )
    return min(zones)


def _refuse_if_not_offered(target: ParallelClusterTarget, zone: str | None) -> None:
    wanted = target.image.build_instance_type
    zones = zones_offering(wanted, target.region)
    if zone in zones or (zone is None and zones):
        return
    raise ToolkitError(
        f"EC2 does not offer {wanted} (target.image.build_instance_type) in {zone or target.region}.",
        next_step="set target.image.build_instance_type to a type with an NVIDIA GPU that it offers, "
        "such as g5.4xlarge or g4dn.4xlarge",
    )
