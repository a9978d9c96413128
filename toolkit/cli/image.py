"""toolkit image: the AMI that a cluster's nodes start from, with the published driver, CUDA and EFA."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.options import (
    again,
    confirm,
    dry_run_option,
    load_settings,
    output_option,
    settings_options,
    yes_option,
)
from toolkit.cli.output import Progress, print_data, print_rows, print_table, progress

if TYPE_CHECKING:
    from toolkit.flows.image import ImageState
    from toolkit.flows.image_build import Survey
    from toolkit.remote.pcluster import Pcluster
    from toolkit.settings.target import ParallelClusterTarget

name_option = click.option("--name", help="The image; default: the one of these settings.")


@click.group()
def cli() -> None:
    """Build and look after the nodes' AMI."""


@cli.command()
@settings_options
@dry_run_option
@click.option(
    "--show",
    type=click.Choice(("config", "component")),
    default="config",
    show_default=True,
    help="With --dry-run: pcluster's image configuration, or the script that the build runs.",
)
@yes_option
@click.option("--rebuild", is_flag=True, help="Delete the image or failed build of that name first.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the AMI is available.")
def build(
    file: Path,
    assignments: tuple[str, ...],
    dry_run: bool,
    show: str,
    yes: bool,
    rebuild: bool,
    wait: bool,
) -> None:
    """Build the AMI with EC2 Image Builder; print its id.

    Takes one to two hours. An image that is there already, or being built, is not built again.

    --dry-run needs no network and sends nothing.

    \b
    Example: toolkit image build -f deployments/qwen3-32b-p5en.yaml
    """
    target = _target(file, assignments)
    tell = progress()
    if dry_run:
        _print_design(target, show, tell)
        return
    from toolkit.flows.image import AVAILABLE, BUILDING, open_pcluster
    from toolkit.flows.image_build import survey

    pcluster = open_pcluster(target, tell)
    found = survey(target, pcluster, tell, rebuild=rebuild)
    status = found.existing.status if found.existing else ""
    if status == AVAILABLE and not rebuild:
        _print_available(found, tell)
        return
    if status == BUILDING:
        tell(f"image {found.plan.name} is being built")
    else:
        _start(found, target, pcluster, tell, rebuild=rebuild, yes=yes)
    if not wait:
        tell(f"`toolkit image describe {again(file, assignments)} --wait` follows it")
        click.echo(found.plan.name)
        return
    click.echo(_follow(again(file, assignments), target, pcluster, found.plan.name, tell).ami)


@cli.command("list")
@settings_options
@output_option("table", "json", "yaml")
def list_(file: Path, assignments: tuple[str, ...], output: str) -> None:
    """The account's images and builds in the deployment's region, with their versions."""
    from toolkit.flows.image import list_images, open_pcluster

    target = _target(file, assignments)
    rows = [
        (row.name, row.status, row.parallelcluster, row.ami, *row.versions.values())
        for row in list_images(open_pcluster(target, progress()))
    ]
    columns = ("image", "status", "parallelcluster", "ami", "driver", "cuda", "efa", "kernel")
    print_rows(columns, rows, output)


@cli.command()
@settings_options
@name_option
@output_option("table", "json", "yaml")
@click.option("--wait", is_flag=True, help="Follow a build until its AMI is available.")
@click.pass_context
def describe(
    ctx: click.Context, file: Path, assignments: tuple[str, ...], name: str | None, output: str, wait: bool
) -> None:
    """Show an image and hold its versions against ami-setup/versions.yaml.

    Exits 1 if an available image has others, and for a failed build, with the lines that prove why.
    """
    from toolkit.errors import ToolkitError
    from toolkit.flows.image import FAILED, describe_image, open_pcluster
    from toolkit.flows.image_build import why_failed
    from toolkit.plan.image_build import image_id

    target = _target(file, assignments)
    tell = progress()
    name = name or image_id(target)
    pcluster = open_pcluster(target, tell)
    same = again(file, assignments)
    state = _follow(same, target, pcluster, name, tell) if wait else describe_image(pcluster, target, name)
    if state is None:
        raise ToolkitError(
            f"there is neither an image {name} in {target.region} nor a build of it.",
            next_step=f"`toolkit image build {same}` builds it; `toolkit image list` shows what is there",
        )
    _print_state(state, output)
    if state.status == FAILED:
        raise why_failed(pcluster, state)
    if state.deviations:
        ctx.exit(1)


@cli.command()
@settings_options
@name_option
@yes_option
@click.option("--force", is_flag=True, help="Also while instances run from it.")
def delete(file: Path, assignments: tuple[str, ...], name: str | None, yes: bool, force: bool) -> None:
    """Remove an AMI with its snapshot, or what a failed build left.

    Refused while a cluster uses it. The bucket and the builds' IAM role stay.
    """
    from toolkit.flows.image import describe_image, open_pcluster
    from toolkit.flows.image_delete import delete_image, refuse_if_used
    from toolkit.plan.image_build import image_id

    target = _target(file, assignments)
    tell = progress()
    name = name or image_id(target)
    pcluster = open_pcluster(target, tell)
    state = describe_image(pcluster, target, name)
    if state is None:
        tell(f"there is no image {name} in {target.region}")
        return
    if not force:
        refuse_if_used(name, state.ami, target.region)
    confirm(f"delete image {name} ({state.ami or state.status}) and its snapshot for good", yes=yes)
    delete_image(pcluster, name, tell, force=force)
    bucket = target.bucket or "of its build"
    tell(f"kept: images/{name}/ in bucket {bucket}, IAM role PClusterBuildImageCleanupRole-*")


def _target(file: Path, assignments: tuple[str, ...]) -> ParallelClusterTarget:
    from toolkit.flows.image import cloud_target

    return cloud_target(load_settings(file, assignments).deployment)


def _print_design(target: ParallelClusterTarget, show: str, tell: Progress) -> None:
    from toolkit.flows.image import design_image

    design = design_image(target)
    text = design.component if show == "component" else design.config
    click.echo(text.removesuffix("\n"))
    if show == "config" and not design.plan.parent_is_known:
        tell("ParentImage is a name here: the id it has in the region is looked up before the build")


def _print_available(found: Survey, tell: Progress) -> None:
    from toolkit.errors import ToolkitError

    state = found.existing
    assert state is not None
    told = ", ".join(f"{key} {value}" for key, value in state.versions.items() if value)
    tell(f"image {state.name} is available: {told}")
    if state.deviations:
        raise ToolkitError(
            f"image {state.name} ({state.ami}) is not what ami-setup/versions.yaml says: "
            + "; ".join(map(str, state.deviations)),
            next_step="--rebuild deletes it and builds anew; target.image.name gives a new one another name",
        )
    click.echo(state.ami)


def _start(
    found: Survey,
    target: ParallelClusterTarget,
    pcluster: Pcluster,
    tell: Progress,
    *,
    rebuild: bool,
    yes: bool,
) -> None:
    from toolkit.flows.image_build import start

    _refuse_leftover(found, rebuild)
    _tell_plan(found, tell)
    first = f"delete image {found.plan.name} and " if found.existing else ""
    confirm(f"{first}build image {found.plan.name}, which costs as said above", yes=yes)
    start(found, target, pcluster, tell, rebuild=rebuild)


def _refuse_leftover(found: Survey, rebuild: bool) -> None:
    from toolkit.errors import ToolkitError
    from toolkit.flows.image import DELETING

    state = found.existing
    if state is None or (rebuild and state.status != DELETING):
        return
    if state.status == DELETING:
        raise ToolkitError(
            f"image {state.name} is being deleted.", next_step="wait a minute, then run the command again"
        )
    raise ToolkitError(
        f"there is a build of image {state.name} that ended as {state.status}. {state.reason}".rstrip(),
        next_step="`toolkit image describe` says why; --rebuild removes it and builds anew",
    )


def _tell_plan(found: Survey, tell: Progress) -> None:
    from toolkit.plan.image_build import cost_lines, kept_lines, made_lines

    plan = found.plan
    bucket = plan.payload_url.removeprefix("s3://").partition("/")[0]
    to_make = (f"bucket {bucket}, which does not exist yet",) if found.bucket == "missing" else ()
    for title, lines in (
        ("will be made", (*made_lines(plan, found.network), *to_make)),
        ("costs", cost_lines(plan, found.network)),
        ("stays", kept_lines(plan, found.network)),
    ):
        tell(f"{title}:")
        for line in lines:
            tell(f"  {line}")


def _follow(
    same: str, target: ParallelClusterTarget, pcluster: Pcluster, name: str, tell: Progress
) -> ImageState:
    from toolkit.flows.image_build import follow

    try:
        return follow(target, pcluster, name, tell)
    except KeyboardInterrupt:
        tell(f"the build goes on; `toolkit image describe {same} --wait` follows it")
        raise


def _print_state(state: ImageState, output: str) -> None:
    wrong = [str(each) for each in state.deviations or ()]
    data = {
        "image": state.name,
        "status": state.status,
        "ami": state.ami,
        **state.versions,
        "parent": state.parent,
        "reason": state.reason,
        "log_group": state.log_group,
    }
    if output == "table":
        print_table(("what", "value"), [(key, value) for key, value in data.items() if value])
        for line in wrong:
            click.echo(f"  {line}", err=True)
    else:
        print_data({**data, "deviations": wrong}, output)
