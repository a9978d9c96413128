"""Removing an image: not while instances run from it, and not before it is gone."""

from __future__ import annotations

import time

from toolkit.errors import ToolkitError
from toolkit.flows.image import BUILDING, DELETING, Progress
from toolkit.remote.aws_image import ami_users
from toolkit.remote.pcluster import Pcluster

LONGEST = 1800.0  # seconds


def refuse_if_used(name: str, ami: str, region: str) -> None:
    """Raises ToolkitError while a cluster or another instance runs from the AMI (empty: it has none)."""
    users = ami_users(ami, region) if ami else ()
    if users:
        raise ToolkitError(
            f"image {name} ({ami}) is in use by {', '.join(users[:6])}{', ...' * (len(users) > 6)}.",
            next_step="delete those clusters first; --force removes the image all the same, and then they "
            "can't replace a node",
        )


def delete_image(
    pcluster: Pcluster, name: str, tell: Progress, *, force: bool = False, poll: float = 2.0
) -> bool:
    """Removes AMI, snapshot, stack and log of the image or failed build; returns when they are gone. False if
    there was none. Raises ToolkitError while it is in use, unless `force`, or is being built."""
    image = pcluster.describe_image(name)
    if image is None:
        return False
    if image.status == BUILDING:
        raise ToolkitError(
            f"image {name} is being built, and EC2 Image Builder does not let go of a running build.",
            next_step="wait with `toolkit image describe --wait`, or cancel it in the Image Builder console",
        )
    if not force:
        refuse_if_used(name, image.ami_id, pcluster.region)
    if image.status != DELETING:
        pcluster.delete_image(name, force=force)
    tell(f"image {name}: deleting {image.ami_id or 'what the build left'}")
    started = time.monotonic()
    while (left := pcluster.describe_image(name)) is not None:
        if left.status == "DELETE_FAILED" or time.monotonic() - started > LONGEST:
            raise ToolkitError(
                f"image {name} could not be deleted: {left.status} {left.reason}".rstrip() + ".",
                next_step="remove what its stack's events name in the CloudFormation console, then try again",
            )
        time.sleep(poll)
    tell(f"image {name}: gone")
    return True
