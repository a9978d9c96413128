"""An image from design to AMI: survey (reads only), start (creates), follow (until it is there or failed)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace

from toolkit.errors import ToolkitError
from toolkit.flows.image import (
    BUILDING,
    DELETING,
    ImageDesign,
    ImageState,
    Progress,
    describe_image,
    design_image,
    image_state,
)
from toolkit.flows.image_delete import delete_image, refuse_if_used
from toolkit.flows.image_failure import explain_failure
from toolkit.flows.image_place import find_place, own_place
from toolkit.plan.cluster import parallelcluster_version
from toolkit.plan.image import ImagePlan
from toolkit.plan.image_build import (
    OFFICIAL_ARCHITECTURE,
    OFFICIAL_OS,
    key_of,
    trial_name,
    with_place,
)
from toolkit.plan.network import NetworkPlan
from toolkit.remote.aws_bucket import BucketState, ensure_bucket, upload, usable_bucket
from toolkit.remote.aws_image import log_lines, official_ami
from toolkit.remote.aws_network import ensure_network
from toolkit.remote.pcluster import Pcluster
from toolkit.settings.target import ParallelClusterTarget

# A build takes an hour or two, its log moves every few seconds.
FIRST_POLL, LONGEST_POLL = 2.0, 30.0  # seconds
# What ami-setup/lib.sh says when a step begins, has done nothing, or is done.
STEP_LINE = re.compile(r"\[(\d\d-[\w-]+)\] (begin|already|done): (.*)")


@dataclass(frozen=True)
class Survey:
    """What there is before anything is made. `existing`: an image or build of that name; `network`: to be
    made for the build."""

    design: ImageDesign
    bucket: BucketState
    existing: ImageState | None
    network: NetworkPlan | None = None

    @property
    def plan(self) -> ImagePlan:
        return self.design.plan


def survey(target: ParallelClusterTarget, pcluster: Pcluster, tell: Progress, *, rebuild: bool) -> Survey:
    """Looks at bucket, image, parent, build place and instance type; creates nothing. Raises ToolkitError, or
    SettingsError for settings from which no image can be built, before the first question to AWS."""
    design = design_image(target)
    plan, bucket = design.plan, str(target.bucket)
    state = usable_bucket(bucket, target.region)
    tell(f"looking for image {plan.name} and what its build needs")
    existing = describe_image(pcluster, target, plan.name)
    if existing and (existing.status in (BUILDING, DELETING) or not rebuild):
        return Survey(design, state, existing)
    if existing:
        refuse_if_used(existing.name, existing.ami, target.region)
    place, network = find_place(target)
    plan = with_place(plan, _parent(plan, pcluster), place)
    return Survey(replace(design, plan=plan), state, existing, network)


def start(
    found: Survey, target: ParallelClusterTarget, pcluster: Pcluster, tell: Progress, *, rebuild: bool
) -> None:
    """Makes what the build needs and starts it; returns at once. `rebuild` removes an image or failed build
    of that name, but not before pcluster has accepted the new one's settings."""
    design = found.design
    if found.network:
        place = own_place(ensure_network(found.network, tell))
        design = replace(design, plan=with_place(design.plan, design.plan.parent_image, place))
    plan, bucket = design.plan, str(target.bucket)
    done = ensure_bucket(bucket, plan.region, dict(plan.tags))
    if done:
        tell(f"bucket {bucket}: {done}")
    sent = upload(
        bucket,
        plan.region,
        {
            key_of(plan.payload_url): design.payload.content,
            key_of(plan.component_url): design.component.encode(),
        },
    )
    tell(f"bucket {bucket}: {len(sent)} object(s) sent, {2 - len(sent)} there already")
    replaces = found.existing is not None and rebuild
    # Only now, though it is a dry run: pcluster makes the IAM role PClusterBuildImageCleanupRole-* in it too.
    # It refuses the name of an image that exists, whatever the configuration.
    tried = trial_name(plan) if replaces else plan.name
    for message in pcluster.build_image(tried, design.config, dry_run=True).validation:
        tell(f"  {message}")
    if replaces:
        delete_image(pcluster, plan.name, tell)
    pcluster.build_image(plan.name, design.config)
    tell(f"image {plan.name}: the build has started")


def follow(
    target: ParallelClusterTarget, pcluster: Pcluster, name: str, tell: Progress, *, poll: float = FIRST_POLL
) -> ImageState:
    """Waits for a build, telling its steps; returns the available image. Raises ToolkitError with the lines
    that prove why it failed."""
    started = time.monotonic()
    version = parallelcluster_version(target)
    seen, told = 0, ""
    while True:
        image = pcluster.describe_image(name)
        if image is None:
            raise ToolkitError(
                f"there is neither an image {name} in {target.region} nor a build of it.",
                next_step="start one with `toolkit image build`; `toolkit image list` shows those there are",
            )
        minutes = (time.monotonic() - started) / 60
        for line in log_lines(name, target.region, seen):
            seen = max(seen, line.time)
            if step := STEP_LINE.search(line.text):
                tell(f"  {minutes:5.1f} min  {step[1]} {step[2]}: {step[3]}")
        if image.status != BUILDING:
            break
        now = image.builder_status or image.stack_status
        if now != told:
            tell(f"  {minutes:5.1f} min  {now}")
            told = now
        time.sleep(poll)
        poll = min(poll * 1.5, LONGEST_POLL)
    state = image_state(image, version)
    if not state.available:
        raise why_failed(pcluster, state)
    tell(f"image {name}: available as {state.ami}")
    return state


def why_failed(pcluster: Pcluster, state: ImageState) -> ToolkitError:
    """The error to raise for a build that has failed."""
    lines = [line.text for line in log_lines(state.name, pcluster.region)]
    return explain_failure(state, pcluster.get_image_stack_events(state.name), lines)


def _parent(plan: ImagePlan, pcluster: Pcluster) -> str:
    """The id that the parent has in this region; an official image's differs from region to region."""
    if plan.parallelcluster == plan.software.parallelcluster:
        found = official_ami(plan.parent_image, plan.region)
        if found:
            return found
        raise ToolkitError(
            f"{plan.region} has no AMI {plan.parent_image} of Amazon's (ami-setup/versions.yaml).",
            next_step="choose a region that ParallelCluster supports",
        )
    images = pcluster.list_official_images(os_name=OFFICIAL_OS, architecture=OFFICIAL_ARCHITECTURE)
    # The name ends in the date of its build.
    newest = max(images, key=lambda image: image.name, default=None)
    if newest is None:
        raise ToolkitError(
            f"ParallelCluster {plan.parallelcluster} has no official AMI for {OFFICIAL_OS} in {plan.region}.",
            next_step="choose another target.version or region",
        )
    return newest.ami_id
