"""A node image (AMI) to be built: what `pcluster build-image` gets and what its component installs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from toolkit.errors import SettingsError
from toolkit.plan.node_software import NodeSoftware
from toolkit.plan.region import partition_of

# pcluster takes 128 characters and adds the build's date, of 28, to Image/Name.
LONGEST_NAME = 100


def image_name(software: NodeSoftware, parallelcluster: str) -> str:
    """The default image id, such as pd-3-14-2-nv580-126-16-cuda13-0-efa1-50-0."""
    words = (
        f"pd-{parallelcluster}",
        f"nv{software.nvidia_driver}",
        f"cuda{software.cuda}",
        f"efa{software.efa_installer}",
    )
    return "-".join(words).replace(".", "-")


@dataclass(frozen=True)
class ImagePlan:
    """One build of an image. Wrong values raise SettingsError.

    `parent_image` is an AMI's id or ARN, or an official image's name; pcluster takes no name, so that one is
    looked up first (`parent_is_known`, `with_parent`). `instance_type` must have a GPU (pcluster's
    InstanceTypeSoftwareValidator). The URLs are s3:// or https://; the build instance reads them.
    """

    name: str
    parallelcluster: str
    region: str
    parent_image: str
    instance_type: str
    component_url: str
    payload_url: str
    payload_sha256: str
    software: NodeSoftware
    root_volume_gb: int = 120
    subnet_id: str | None = None
    security_group_ids: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        _check_name(self.name)
        for key in ("component_url", "payload_url"):
            _check_url(key, getattr(self, key))
        if not re.fullmatch(r"[0-9a-f]{64}", self.payload_sha256):
            raise SettingsError(
                f"payload_sha256 is {self.payload_sha256!r}, not 64 hexadecimal digits",
                next_step="give what sha256sum prints for the payload",
            )
        if self.subnet_id and not self.security_group_ids:
            raise SettingsError(
                f"subnet {self.subnet_id} is given for the build instance, but no security group",
                next_step="name a security group of that subnet's VPC; it needs no inbound rule",
            )

    @property
    def parent_is_known(self) -> bool:
        return self.parent_image.startswith(("ami-", "arn:"))

    @property
    def partition(self) -> str:
        return partition_of(self.region)

    def with_parent(self, image_id: str) -> ImagePlan:
        return replace(self, parent_image=image_id)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9-]+", name) or len(name) > LONGEST_NAME:
        raise SettingsError(
            f"image name {name!r} is not a letter followed by letters, digits and hyphens, "
            f"{LONGEST_NAME} characters at most",
            next_step="choose another name; a dot is not allowed in it",
        )


def _check_url(key: str, url: str) -> None:
    if not re.fullmatch(r"(s3|https)://\S+", url):
        raise SettingsError(
            f"{key} is {url!r}, which a build instance cannot read",
            next_step="give an s3:// or https:// address",
        )
