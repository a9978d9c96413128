"""The node image: designed from settings without any network, and told from what is there.

flows/image_build.py makes it, flows/image_delete.py removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.plan.cluster import parallelcluster_version
from toolkit.plan.image import ImagePlan
from toolkit.plan.image_build import plan_image, with_component
from toolkit.plan.image_tags import Deviation, deviations, told_versions
from toolkit.plan.node_software import node_software
from toolkit.remote.aws_image import image_tags, log_group
from toolkit.remote.pcluster import Pcluster
from toolkit.remote.pcluster_answer import Image
from toolkit.remote.pcluster_env import ensure_pcluster
from toolkit.render.image import render_component, render_image_config
from toolkit.render.payload import Payload, render_payload
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import ParallelClusterTarget

Progress = Callable[[str], None]

# pcluster's words.
AVAILABLE, BUILDING, FAILED = "BUILD_COMPLETE", "BUILD_IN_PROGRESS", "BUILD_FAILED"
DELETING = "DELETE_IN_PROGRESS"


@dataclass(frozen=True)
class ImageDesign:
    """Everything of a build that settings and this installation decide."""

    plan: ImagePlan
    payload: Payload
    component: str

    @property
    def config(self) -> str:
        """What `pcluster build-image` gets."""
        return render_image_config(self.plan)


@dataclass(frozen=True)
class ImageState:
    """An image as it is. `status` is pcluster's; `deviations` are None unless there is an AMI to compare."""

    name: str
    status: str
    ami: str
    reason: str
    versions: Mapping[str, str]
    parent: str
    log_group: str
    deviations: tuple[Deviation, ...] | None

    @property
    def available(self) -> bool:
        return self.status == AVAILABLE


@dataclass(frozen=True)
class ImageRow:
    """A line of the list of images."""

    name: str
    status: str
    parallelcluster: str
    ami: str
    versions: Mapping[str, str]


def cloud_target(settings: Deployment) -> ParallelClusterTarget:
    """Raises ToolkitError for a deployment that is not on AWS."""
    if isinstance(settings.target, ParallelClusterTarget):
        return settings.target
    raise ToolkitError(
        f"target.kind {settings.target.kind}: only clusters on AWS have images.",
        next_step="name a deployment whose target.kind is parallelcluster",
    )


def open_pcluster(target: ParallelClusterTarget, tell: Progress) -> Pcluster:
    """pcluster of the target's version, installed if it isn't there."""
    return Pcluster(ensure_pcluster(parallelcluster_version(target), tell), target.region)


def design_image(target: ParallelClusterTarget) -> ImageDesign:
    """Offline. Raises SettingsError for settings from which no image can be built."""
    payload = render_payload()
    plan = plan_image(target, payload.sha256)
    component = render_component(plan)
    return ImageDesign(with_component(plan, component), payload, component)


def describe_image(pcluster: Pcluster, target: ParallelClusterTarget, name: str) -> ImageState | None:
    """None if there is neither such an image nor a build of it."""
    found = pcluster.describe_image(name)
    return image_state(found, parallelcluster_version(target)) if found else None


def image_state(image: Image, parallelcluster: str) -> ImageState:
    """pcluster's answer, held against ami-setup/versions.yaml."""
    there = image.status == AVAILABLE
    return ImageState(
        name=image.image_id,
        status=image.status,
        ami=image.ami_id,
        reason=image.reason,
        versions=told_versions(image.tags),
        parent=image.tags.get("parallelcluster:parent_image", ""),
        log_group=log_group(image.image_id),
        deviations=deviations(image.tags, node_software(), parallelcluster) if there else None,
    )


def list_images(pcluster: Pcluster) -> tuple[ImageRow, ...]:
    """Every image and build of the account in the region, pcluster's of any version."""
    tags = image_tags(pcluster.region)
    rows = []
    for image in pcluster.list_images():
        told = tags.get(image.image_id, {})
        rows.append(
            ImageRow(image.image_id, image.status, image.version, told.get("ami", ""), told_versions(told))
        )
    return tuple(sorted(rows, key=lambda row: row.name))
