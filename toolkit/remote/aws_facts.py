"""What AWS says of everything a cluster's plan names. Reads only; plan/aws_facts.py holds the answers.

One call serves all things of a kind. What AWS refuses to tell becomes Unknown, so that a check can say so; no
credentials, or no way to AWS, ends the reading with ToolkitError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from toolkit.plan import cluster_document as document_of
from toolkit.plan.aws_facts import (
    Ami,
    Answer,
    Facts,
    KeyPair,
    PlacementGroup,
    Quota,
    Reservation,
    SecurityGroup,
    Subnet,
    Unknown,
    Vpc,
    quota_code,
)
from toolkit.plan.cluster import ClusterPlan
from toolkit.plan.instance_type import InstanceType
from toolkit.remote.aws_answers import (
    answer_of,
    each_of,
    filters,
    newest,
    read_ami,
    read_instance_type,
    read_reservation,
    read_security_group,
    read_subnet,
    route_of,
)
from toolkit.remote.aws_session import AwsAnswer, aws_errors, client
from toolkit.remote.aws_storage import StorageReader
from toolkit.settings.target import ParallelClusterTarget

T = TypeVar("T")
Named = Mapping[str, Answer[T]]


class AwsReader:
    """Facts of one region. Raises ToolkitError when AWS can't be asked at all."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._ec2 = client("ec2", region)

    def account(self) -> str:
        """The account's number; also proves that the credentials work."""
        sts = client("sts", self._region)
        with aws_errors("asking AWS who we are"):
            return str(sts.get_caller_identity()["Account"])

    def instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
        """By name; those that do not exist in the region are left out."""
        wanted = sorted(set(names))
        with aws_errors(f"reading instance types {', '.join(wanted)}"):
            found = self._pages(
                "describe_instance_types", "InstanceTypes", **filters({"instance-type": wanted})
            )
            return {each["InstanceType"]: read_instance_type(each) for each in found}

    def image(self, name: str, version: str) -> Ami | None:
        """The newest available AMI that ParallelCluster `version` built under that name; None: there is none.

        By the tags that build-image writes; an image whose build failed has no build_status `available`.
        """
        wanted = {
            "tag:parallelcluster:image_id": name,
            "tag:parallelcluster:version": version,
            "tag:parallelcluster:build_status": "available",
        }
        with aws_errors(f"looking for image {name}"):
            found = self._ec2.describe_images(Owners=["self"], **filters(wanted))["Images"]
        return read_ami(newest(found)) if found else None

    def ami(self, ami: str) -> Ami | None:
        """None: no such AMI, or not one this account may use."""
        with aws_errors(f"reading {ami}"):
            found = self._ec2.describe_images(**filters({"image-id": [ami]}))["Images"]
        return read_ami(found[0]) if found else None

    def official_ami(self, name: str) -> Ami | None:
        """The newest AMI of Amazon's with that name; `*` stands for anything."""
        with aws_errors(f"looking for the official image {name}"):
            found = self._ec2.describe_images(Owners=["amazon"], **filters({"name": [name]}))["Images"]
        return read_ami(newest(found)) if found else None

    def facts(self, target: ParallelClusterTarget, plan: ClusterPlan, document: Mapping[str, Any]) -> Facts:
        """All that the checks of preflight/ ask. `document`: ParallelCluster's configuration of that plan."""
        account = self.account()
        storage = StorageReader(self._region, account, self._ec2)
        volumes = storage.file_systems(_given(plan.volume.file_system))
        subnets = self._subnets([*document_of.subnets(document), *storage.subnets(volumes)])
        vpcs = [subnet.vpc for subnet in subnets.values() if subnet and not isinstance(subnet, Unknown)]
        groups = [*document_of.security_groups(document), *storage.groups(volumes)]
        types = [plan.head.instance_type, *(queue.instance.name for queue in plan.queues)]
        return Facts(
            now=datetime.now(UTC),
            region=self._region,
            account=account,
            stack=answer_of(lambda: self._stack(plan.name)),
            subnets=subnets,
            vpcs=self._vpcs(sorted(set(vpcs))),
            reservations=self._reservations(_given(plan.gpu.reservation)),
            placement_groups=self._placement_groups(_given(plan.gpu.placement_group)),
            keys=self._keys([plan.head.key_name]),
            security_groups=self._security_groups(sorted(set(groups))),
            amis=self._amis(plan.ami),
            images=self._images(plan),
            official=self._official(plan),
            file_systems=volumes,
            buckets=storage.buckets(_buckets(target, document), ours=target.bucket),
            objects=storage.objects(document_of.scripts(document)),
            instance_types=self._architectures(sorted(set(types))),
            offered=self._offered(sorted(set(types))),
            quotas=self._quotas(plan),
            vpc_count=answer_of(self._vpc_count) if plan.makes_network else None,
        )

    def _amis(self, ami: str | None) -> Named[Ami]:
        if ami is None or not ami.startswith("ami-"):
            return {}
        return {ami: answer_of(partial(self.ami, ami))}

    def _images(self, plan: ClusterPlan) -> Named[Ami]:
        name = plan.image
        return {name: answer_of(partial(self.image, name, plan.version))} if name else {}

    def _official(self, plan: ClusterPlan) -> Answer[Ami]:
        return None if plan.ami else answer_of(partial(self.official_ami, official_pattern(plan)))

    def _stack(self, name: str) -> str | None:
        formation = client("cloudformation", self._region)
        try:
            with aws_errors(f"asking whether stack {name} exists"):
                return str(formation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"])
        except AwsAnswer as answer:
            if answer.code == "ValidationError" and "does not exist" in answer.what:
                return None
            raise

    def _subnets(self, wanted: Sequence[str]) -> Named[Subnet]:
        def read() -> dict[str, Any]:
            with aws_errors("reading subnets"):
                return {
                    each["SubnetId"]: each
                    for each in self._pages("describe_subnets", "Subnets", **filters({"subnet-id": wanted}))
                }

        found = each_of(wanted, read)
        tables = self._route_tables(
            sorted({each["VpcId"] for each in found.values() if isinstance(each, dict)})
        )
        return {
            name: read_subnet(each, route_of(each, tables)) if isinstance(each, dict) else each
            for name, each in found.items()
        }

    def _route_tables(self, vpcs: Sequence[str]) -> Answer[list[dict[str, Any]]]:
        def read() -> list[dict[str, Any]]:
            with aws_errors("reading route tables"):
                return self._pages("describe_route_tables", "RouteTables", **filters({"vpc-id": vpcs}))

        return answer_of(read) if vpcs else []

    def _vpcs(self, wanted: Sequence[str]) -> Named[Vpc]:
        def has(vpc: str, attribute: str) -> bool:
            answer = self._ec2.describe_vpc_attribute(VpcId=vpc, Attribute=attribute)
            return bool(answer[attribute[0].upper() + attribute[1:]]["Value"])

        def read(vpc: str) -> Vpc:
            with aws_errors(f"reading {vpc}"):
                ends = self._pages("describe_vpc_endpoints", "VpcEndpoints", **filters({"vpc-id": vpc}))
                return Vpc(
                    id=vpc,
                    dns_support=has(vpc, "enableDnsSupport"),
                    dns_hostnames=has(vpc, "enableDnsHostnames"),
                    endpoints=frozenset(each["ServiceName"].rpartition(".")[2] for each in ends),
                )

        return {vpc: answer_of(partial(read, vpc)) for vpc in wanted}

    def _vpc_count(self) -> int:
        with aws_errors("counting VPCs"):
            return len(self._pages("describe_vpcs", "Vpcs"))

    def _reservations(self, wanted: Sequence[str]) -> Named[Reservation]:
        def read() -> dict[str, Reservation]:
            try:
                with aws_errors("reading capacity reservations"):
                    found = self._ec2.describe_capacity_reservations(CapacityReservationIds=list(wanted))
            except AwsAnswer as answer:
                if answer.code.startswith("InvalidCapacityReservationId"):
                    return {}
                raise
            return {
                each["CapacityReservationId"]: read_reservation(each)
                for each in found["CapacityReservations"]
            }

        return each_of(wanted, read)

    def _placement_groups(self, wanted: Sequence[str]) -> Named[PlacementGroup]:
        def read() -> dict[str, PlacementGroup]:
            with aws_errors("reading placement groups"):
                found = self._ec2.describe_placement_groups(**filters({"group-name": wanted}))[
                    "PlacementGroups"
                ]
            return {
                each["GroupName"]: PlacementGroup(each["GroupName"], each["Strategy"], each["State"])
                for each in found
            }

        return each_of(wanted, read)

    def _keys(self, wanted: Sequence[str]) -> Named[KeyPair]:
        def read() -> dict[str, KeyPair]:
            with aws_errors("reading key pairs"):
                found = self._ec2.describe_key_pairs(**filters({"key-name": wanted}))["KeyPairs"]
            return {each["KeyName"]: KeyPair(each["KeyName"], each.get("KeyType")) for each in found}

        return each_of(wanted, read)

    def _security_groups(self, wanted: Sequence[str]) -> Named[SecurityGroup]:
        def read() -> dict[str, SecurityGroup]:
            with aws_errors("reading security groups"):
                found = self._pages(
                    "describe_security_groups", "SecurityGroups", **filters({"group-id": wanted})
                )
            return {each["GroupId"]: read_security_group(each) for each in found}

        return each_of(wanted, read)

    def _architectures(self, wanted: Sequence[str]) -> Named[str]:
        def read() -> dict[str, str]:
            with aws_errors("reading instance types"):
                found = self._pages(
                    "describe_instance_types", "InstanceTypes", **filters({"instance-type": wanted})
                )
            return {
                each["InstanceType"]: each.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])[
                    -1
                ]
                for each in found
            }

        return each_of(wanted, read)

    def _offered(self, wanted: Sequence[str]) -> Named[frozenset[str]]:
        def read() -> dict[str, frozenset[str]]:
            with aws_errors("reading which zones offer the instance types"):
                found = self._pages(
                    "describe_instance_type_offerings",
                    "InstanceTypeOfferings",
                    LocationType="availability-zone",
                    **filters({"instance-type": wanted}),
                )
            return {
                name: frozenset(each["Location"] for each in found if each["InstanceType"] == name)
                for name in wanted
            }

        return each_of(wanted, read)

    def _quotas(self, plan: ClusterPlan) -> Named[Quota]:
        codes = {quota_code(plan.head.instance_type), quota_code(plan.router.instance.name)}
        if not plan.gpu.reservation:
            codes.add(quota_code(plan.gpu.instance.name, spot=plan.gpu.capacity_type == "SPOT"))
        quotas = client("service-quotas", self._region)

        def read(code: str) -> Quota:
            with aws_errors(f"reading quota {code}"):
                found = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
            return Quota(code, found["QuotaName"], found["Value"])

        return {code: answer_of(partial(read, code)) for code in sorted(filter(None, codes))}

    def _pages(self, call: str, key: str, **arguments: Any) -> list[dict[str, Any]]:
        pages = self._ec2.get_paginator(call).paginate(**arguments)
        return [each for page in pages for each in page[key]]


def _given(name: str | None) -> list[str]:
    return [name] if name else []


def official_pattern(plan: ClusterPlan) -> str:
    """Name of the AMIs that AWS publishes for a version and system, their date left open."""
    return f"aws-parallelcluster-{plan.version}-ubuntu-2404-lts-hvm-x86_64-*"


def _buckets(target: ParallelClusterTarget, document: Mapping[str, Any]) -> list[str]:
    of_scripts = (document_of.bucket_and_key(url) for url in document_of.scripts(document))
    names = [target.bucket, *(found[0] for found in of_scripts if found)]
    return list(dict.fromkeys(name for name in names if name))
