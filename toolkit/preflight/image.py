"""Checks of ParallelCluster's version and of the AMI that nodes start from."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.plan.aws_facts import Ami
from toolkit.plan.image_tags import fits, told
from toolkit.plan.instance_type import version_tuple
from toolkit.preflight.problem import Problem
from toolkit.preflight.schema_keys import schema_keys
from toolkit.preflight.subject import Check, Subject

AMI = "target.image.ami"
NAME = "target.image.name"
OFFICIAL = "target.image.official"
VERSION = "target.version"
# First ParallelCluster that knows ubuntu2404: its changelog of 3.13.0 (aws/aws-parallelcluster#6658).
FIRST_WITH_UBUNTU_2404 = "3.13.0"
BUILD = "`toolkit image build` makes one with the versions of ami-setup/versions.yaml"


def version_tested(s: Subject) -> Iterator[Problem]:
    version, tested = s.plan.version, schema_keys().versions
    if version_tuple(version) < version_tuple(FIRST_WITH_UBUNTU_2404):
        yield s.error(
            VERSION,
            f"ParallelCluster {version} does not know {s.plan.os}, which came with {FIRST_WITH_UBUNTU_2404}",
            f"use one of {', '.join(tested)}",
        )
    elif version not in tested:
        yield s.warning(
            VERSION,
            f"this toolkit is tested with ParallelCluster {' and '.join(tested)}",
            "use one of these, or watch the dry run closely",
        )


def official_image(s: Subject) -> Iterator[Problem]:
    if not s.target.image.official:
        return
    yield s.warning(
        OFFICIAL,
        f"ParallelCluster's own AMI has an older driver, CUDA and EFA than ami-setup/versions.yaml asks for "
        f"({_wanted(s)}), no engine, and no check of them when a node starts",
        f"leave target.image.official out; {BUILD}",
    )
    if s.known(s.facts.official) is None:
        yield s.error(
            OFFICIAL,
            f"AWS publishes no {s.plan.os} AMI of ParallelCluster {s.plan.version} in {s.region}",
            "use another target.version or target.region",
        )


def image_built(s: Subject) -> Iterator[Problem]:
    name = s.plan.image
    if name and s.asked(s.facts.images, name) is None:
        yield s.error(
            NAME,
            f"no image of that name is built for ParallelCluster {s.plan.version} in {s.region}",
            "`toolkit image build` with the same -f and --set, about an hour; `toolkit image list` shows "
            "those there are",
        )


def ami_exists(s: Subject) -> Iterator[Problem]:
    name = s.target.image.ami
    if name and s.asked(s.facts.amis, name) is None:
        yield s.error(
            AMI,
            f"there is no such AMI in {s.region}, or account {s.facts.account} may not use it",
            f"`toolkit image list` shows yours; {BUILD}",
        )


def ami_available(s: Subject) -> Iterator[Problem]:
    found = s.ami
    if found and found.state != "available":
        yield s.error(_key(s), f"{found.id} is {found.state}, not available", "wait, or name another image")


def ami_made_by_parallelcluster(s: Subject) -> Iterator[Problem]:
    found = s.ami
    if found and not _is_official(found) and "parallelcluster:version" not in found.tags:
        yield s.error(
            _key(s),
            f"{found.id} ({found.name}) was not made by ParallelCluster's build-image: nodes would not start "
            "(InvalidAmi)",
            BUILD,
        )


def ami_version(s: Subject) -> Iterator[Problem]:
    found = s.ami
    made = _made_for(found) if found else None
    if found and made and made != s.plan.version:
        yield s.error(
            _key(s),
            f"{found.id} was made for ParallelCluster {made}, but this cluster's is {s.plan.version}",
            f"set target.version: {made}, or build the image anew",
        )


def ami_software(s: Subject) -> Iterator[Problem]:
    """By the tags that build-image writes after its last component: what the image really holds."""
    found = s.ami
    if not found or s.target.image.official or _made_for(found) != s.plan.version:
        return
    if _is_official(found):
        yield s.error(
            AMI,
            f"{found.id} is ParallelCluster's own AMI, without the driver, CUDA and EFA of "
            f"ami-setup/versions.yaml ({_wanted(s)}) and without the engine",
            f"{BUILD}; or set target.image.official: true in place of target.image.ami",
        )
        return
    wanted = {
        "nvidia_version": ("the NVIDIA driver", s.software.nvidia_driver),
        "cuda_version": ("CUDA", s.software.cuda),
        "efa_version": ("EFA's kernel module", s.software.efa_module),
        "kernel_version": ("the kernel", s.software.kernel),
        "os": ("the system", s.plan.os),
    }
    for tag, (what, version) in wanted.items():
        has = told(found.tags, tag)
        if not has:
            yield s.warning(
                _key(s),
                f"{found.id} does not say which version of {what} it has; {version} is needed",
                "nodes check it when they start; building the image anew writes the tags",
            )
        elif not fits(tag, has, version):
            yield s.error(
                _key(s), f"{found.id} has {what} {has}, but ami-setup/versions.yaml asks for {version}", BUILD
            )


def ami_architecture(s: Subject) -> Iterator[Problem]:
    found = s.ami
    types = {
        "target.head.instance_type": s.plan.head.instance_type,
        "target.gpu.instance_type": s.plan.gpu.instance.name,
        "target.router.instance_type": s.plan.router.instance.name,
    }
    for key, name in types.items():
        has = s.asked(s.facts.instance_types, name)
        wanted = found.architecture if found and found.architecture else "x86_64"
        if has and has != wanted:
            yield s.error(key, f"is an {has} machine, but the image is for {wanted}", "choose another type")


def root_volume(s: Subject) -> Iterator[Problem]:
    found = s.ami
    sizes = {
        "target.head.volume_gb": s.plan.head.volume_gb,
        "target.gpu.volume_gb": s.plan.gpu.volume_gb,
        "target.router.volume_gb": s.plan.router.volume_gb,
    }
    for key, size in sizes.items():
        if found and found.volume_gb and size < found.volume_gb:
            yield s.error(
                key,
                f"is smaller than the {found.volume_gb} GB of {found.id}",
                f"set it to {found.volume_gb} or more",
            )


def _key(s: Subject) -> str:
    """The setting that chose the AMI."""
    if s.target.image.official:
        return OFFICIAL
    return AMI if s.target.image.ami else NAME


def _is_official(ami: Ami) -> bool:
    return ami.owner_alias == "amazon" and ami.name.startswith("aws-parallelcluster-")


def _made_for(ami: Ami) -> str | None:
    if _is_official(ami):
        return ami.name.split("-")[2]
    return ami.tags.get("parallelcluster:version")


def _wanted(s: Subject) -> str:
    software = s.software
    return f"{software.nvidia_driver}, {software.cuda}, {software.efa_installer}"


CHECKS: tuple[Check, ...] = (
    version_tested,
    official_image,
    image_built,
    ami_exists,
    ami_available,
    ami_made_by_parallelcluster,
    ami_version,
    ami_software,
    ami_architecture,
    root_volume,
)
