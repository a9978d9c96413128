"""Settings -> the image that `toolkit image build` makes. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from toolkit.errors import SettingsError
from toolkit.plan.cluster import parallelcluster_version
from toolkit.plan.image import ImagePlan, image_name
from toolkit.plan.network import NetworkPlan
from toolkit.plan.node_software import node_software
from toolkit.settings.target import ParallelClusterTarget

# As `pcluster list-official-images` takes them; the pattern is that of the AMIs' names.
OFFICIAL_OS, OFFICIAL_ARCHITECTURE = "ubuntu2404", "x86_64"
OFFICIAL_NAME = "aws-parallelcluster-{version}-ubuntu-2404-lts-hvm-x86_64-*"
NO_PRICES = "prices are not asked; see the AWS Pricing Calculator"


@dataclass(frozen=True)
class BuildPlace:
    """Where the build instance runs; None: a subnet of the region's default VPC."""

    subnet: str | None = None
    security_groups: tuple[str, ...] = ()


def image_id(target: ParallelClusterTarget) -> str:
    """pcluster's id of the image that these settings build and use."""
    software = node_software()
    return target.image.name or image_name(software, parallelcluster_version(target, software))


def settings_place(target: ParallelClusterTarget) -> BuildPlace:
    """The nodes' subnet if the settings also name a security group for it, which pcluster asks for."""
    network = target.network
    if network.compute_subnet and network.security_groups:
        return BuildPlace(network.compute_subnet, network.security_groups)
    return BuildPlace()


def plan_image(target: ParallelClusterTarget, payload_sha256: str) -> ImagePlan:
    """The image with its parent still named and without its component, which `with_component` adds, as
    `with_place` does what AWS was asked for. SettingsError if nothing can be built from the settings."""
    if target.image.ami:
        raise SettingsError(
            f"target.image.ami is {target.image.ami}: these settings use that AMI, and build none.",
            next_step="remove target.image.ami to build one",
        )
    if target.image.official:
        raise SettingsError(
            "target.image.official is true: these settings use ParallelCluster's own AMI, and build none.",
            next_step="remove target.image.official to build one",
        )
    if not target.bucket:
        raise SettingsError(
            "target.bucket is not given: the build instance fetches its script and wheels from it.",
            next_step="name an S3 bucket in the file; it is made if it does not exist",
        )
    software = node_software()
    version = parallelcluster_version(target, software)
    name = image_id(target)
    folder = f"s3://{target.bucket}/images/{name}"
    place = settings_place(target)
    same = version == software.parallelcluster
    return ImagePlan(
        name=name,
        parallelcluster=version,
        region=target.region,
        parent_image=software.parent_image if same else OFFICIAL_NAME.format(version=version),
        instance_type=target.image.build_instance_type,
        component_url=f"{folder}/component.sh",
        payload_url=f"{folder}/payload-{payload_sha256[:16]}.tar.gz",
        payload_sha256=payload_sha256,
        software=software,
        root_volume_gb=target.image.volume_gb,
        subnet_id=place.subnet,
        security_group_ids=place.security_groups,
        tags=tuple(target.tags.items()),
    )


def with_component(plan: ImagePlan, script: str) -> ImagePlan:
    """`script` is the rendered component: its digest becomes part of its address."""
    digest = hashlib.sha256(script.encode()).hexdigest()[:16]
    folder = plan.payload_url.rpartition("/")[0]
    return replace(plan, component_url=f"{folder}/component-{digest}.sh")


def with_place(plan: ImagePlan, parent: str, place: BuildPlace) -> ImagePlan:
    """`parent` is the id that the parent image has in the region."""
    return replace(
        plan, parent_image=parent, subnet_id=place.subnet, security_group_ids=place.security_groups
    )


def trial_name(plan: ImagePlan) -> str:
    """A name under which pcluster validates the configuration while an image has the plan's own."""
    return f"{plan.name}-trial"


def key_of(url: str) -> str:
    """The key in an address s3://bucket/key."""
    return url.removeprefix("s3://").partition("/")[2]


def made_lines(plan: ImagePlan, network: NetworkPlan | None = None) -> tuple[str, ...]:
    """What the image will hold and how it is made, for the reader who has to agree. `network`: the one that
    has to be made first."""
    software = plan.software
    place = plan.subnet_id or "the default VPC"
    own: tuple[str, ...] = ()
    if network:
        place = f"network {network.stack}"
        own = (
            f"network stack {network.stack}: VPC {network.cidr} in {network.zone} with a NAT gateway; the "
            "cluster of these settings uses it too",
        )
    return (
        f"image {plan.name} for ParallelCluster {plan.parallelcluster} in {plan.region}",
        f"from {plan.parent_image}{_other_parent(plan)}",
        f"kernel {software.kernel} held; NVIDIA driver {software.nvidia_driver} (open modules), fabric "
        "manager and IMEX of the same version",
        f"CUDA {software.cuda}, EFA installer {software.efa_installer} (module {software.efa_module}), "
        "gdrdrv and efa-nv-peermem rebuilt",
        f"vLLM {software.vllm}, NIXL {software.nixl}, connector and toolkit of this installation",
        f"built on one {plan.instance_type} in {place} by EC2 Image Builder, then tested on a second one",
        *own,
    )


def _other_parent(plan: ImagePlan) -> str:
    known = plan.software.parallelcluster
    if plan.parallelcluster == known:
        return ""
    kernel = plan.software.kernel
    return f"; step 10-hold-kernel fails unless its kernel is that of ParallelCluster {known}, {kernel}"


def cost_lines(plan: ImagePlan, network: NetworkPlan | None = None) -> tuple[str, ...]:
    own = ("NAT gateway: by the hour and GB, until the network is deleted",) if network else ()
    return (
        f"{plan.instance_type}: by the second while it builds and tests, one to two hours in all",
        f"{plan.root_volume_gb} GB volume while it builds, then the AMI's snapshot, GB-months until deleted",
        "some MB in the bucket",
        *own,
        NO_PRICES,
    )


def kept_lines(plan: ImagePlan, network: NetworkPlan | None = None) -> tuple[str, ...]:
    bucket = plan.payload_url.removeprefix("s3://").partition("/")[0]
    own = (f"network {network.stack}, until `toolkit cluster delete --delete-network`",) if network else ()
    return (
        f"bucket {bucket} with images/{plan.name}/",
        "IAM role PClusterBuildImageCleanupRole-*, which all image builds of the account share",
        "after a failure: the stack and its log group, until `toolkit image delete`; no instance",
        *own,
    )
