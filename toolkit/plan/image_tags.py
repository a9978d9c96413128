"""What ParallelCluster's tags on an AMI say of its software, held against ami-setup/versions.yaml. Pure.

pcluster writes the tags at the end of a build, from what is installed (resources/imagebuilder/
parallelcluster_tag.yaml of aws-parallelcluster), each in its tool's own words:

    kernel_version  uname -r                                    6.14.0-1018-aws
    nvidia_version  modinfo nvidia                              580.126.16
    cuda_version    /usr/local/cuda/version.json                13.0.2, and 13.0.20250801 in some releases
    efa_version     dpkg -s efa: the package, not the module    3.3.0-1.amzn1
    os, version     its own names                               ubuntu2404, 3.14.2
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.plan.node_software import NodeSoftware

PREFIX = "parallelcluster:"
# What jq writes for a key that a file lacks; the script tags with it all the same.
UNTOLD = ("", "null")


@dataclass(frozen=True)
class Deviation:
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found or 'nothing'}"


def told(tags: Mapping[str, str], name: str) -> str:
    """What the tag parallelcluster:`name` says; empty if nothing."""
    value = tags.get(f"{PREFIX}{name}", "")
    return "" if value in UNTOLD else value


def fits(name: str, found: str, expected: str) -> bool:
    """Whether the value of tag `name` names the version that ami-setup/versions.yaml has as `expected`."""
    if name == "efa_version":
        return efa_release(found) == efa_release(expected)
    if name == "cuda_version":
        return found == expected or found.startswith(f"{expected}.")
    return found == expected


def efa_release(version: str) -> str:
    """3.3.0 of a package (3.3.0-1.amzn1, 3.3.0-1) and of the module in it (3.3.0g: the letter says how it is
    built, with GPUDirect, which no package version has)."""
    upstream = version.partition("-")[0]
    return re.sub(r"(?<=\d)[a-z]$", "", upstream)


def deviations(
    tags: Mapping[str, str], software: NodeSoftware, parallelcluster: str
) -> tuple[Deviation, ...]:
    """What an AMI's tags say otherwise than ami-setup/versions.yaml."""
    expected = (
        ("ParallelCluster", "version", parallelcluster),
        ("NVIDIA driver", "nvidia_version", software.nvidia_driver),
        ("CUDA", "cuda_version", software.cuda),
        ("EFA module", "efa_version", software.efa_module),
        ("kernel", "kernel_version", software.kernel),
    )
    return tuple(
        Deviation(what, version, told(tags, name))
        for what, name, version in expected
        if not fits(name, told(tags, name), version)
    )


def told_versions(tags: Mapping[str, str]) -> dict[str, str]:
    """Driver, CUDA, EFA and kernel of an AMI as its tags have them; empty where they say nothing."""
    return {
        name: told(tags, tag)
        for name, tag in (
            ("driver", "nvidia_version"),
            ("cuda", "cuda_version"),
            ("efa", "efa_version"),
            ("kernel", "kernel_version"),
        )
    }
