"""toolkit cluster fleet: starts or stops the compute nodes of a cluster on AWS, after asking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolkit.cli.live_line import live_line
from toolkit.cli.options import confirm
from toolkit.cli.output import print_data, progress

if TYPE_CHECKING:
    from toolkit.flows.cluster_fleet import Action
    from toolkit.settings.load import Loaded


def change(loaded: Loaded, action: Action, *, output: str, yes: bool, wait: bool) -> None:
    """Prints the fleet's status in the end, or with `wait` False the one right after the request."""
    from toolkit.flows import cluster_fleet as flow
    from toolkit.flows.cluster_progress import Follower
    from toolkit.flows.provision import open_cloud

    cloud = open_cloud(loaded, progress())
    fleet = flow.look(cloud)
    status = fleet.status
    cloud.tell(f"the compute fleet of cluster {cloud.name} is {status}, with {len(fleet.nodes)} nodes")
    if status != flow.END[action]:
        if action == "stop":
            confirm(
                f"stop the compute fleet of cluster {cloud.name}: its {len(fleet.nodes)} nodes are "
                "terminated, and every job on them ends",
                yes=yes,
            )
        status = flow.request(cloud, fleet, action)
        if wait:
            try:
                with live_line() as (tell, live):
                    status = flow.follow(cloud, fleet, action, Follower(tell, live))
            except KeyboardInterrupt:
                cloud.tell(f"it goes on without this command; {_shown_by(loaded)}")
                raise
        else:
            cloud.tell(f"asked for; it goes on without this command; {_shown_by(loaded)}")
    if output == "json":
        print_data({"cluster": cloud.name, "fleet": status}, output)
    else:
        click.echo(status)


def _shown_by(loaded: Loaded) -> str:
    return f"`toolkit cluster describe {loaded.arguments}` shows the fleet's status"
