"""toolkit cluster, for clusters on AWS: each verb asks the flows, shows, confirms, and follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import click

from toolkit.cli import cluster_text as text
from toolkit.cli.live_line import live_line
from toolkit.cli.options import confirm
from toolkit.cli.output import print_data, print_table, progress

if TYPE_CHECKING:
    from toolkit.flows.cluster_progress import Follower
    from toolkit.flows.provision import Cloud
    from toolkit.plan.ssh import SshAddress
    from toolkit.settings.load import Loaded

LONGEST_COMMAND = 24 * 3600.0  # seconds, of `cluster ssh -- COMMAND`


def print_config(loaded: Loaded, *, check: bool) -> None:
    """The configuration that would be sent; offline unless `check`. What the checks find wrong ends it with
    an error, after the text."""
    from toolkit.flows.provision import propose, propose_offline, with_dry_run
    from toolkit.preflight.check import raise_for

    cloud = _open(loaded)
    if check:
        proposal = with_dry_run(cloud, propose(cloud))
        _tell(text.proposal_lines(proposal))
    else:
        proposal = propose_offline(cloud)
        _tell(text.offline_lines(proposal))
    click.echo(proposal.config, nl=False)
    raise_for(proposal.problems, cloud.name)


def create(loaded: Loaded, *, output: str, yes: bool, wait: bool, rollback: bool) -> None:
    from toolkit.flows.cluster_create import follow_creation, make, standing
    from toolkit.flows.provision import propose, with_dry_run

    cloud = _open(loaded)
    there = standing(cloud)
    if there == "absent":
        proposal = with_dry_run(cloud, propose(cloud))
        _tell(text.proposal_lines(proposal))
        confirm(f"create cluster {cloud.name} in {cloud.region}", yes=yes)
        with _following(cloud, "the creation may have begun; if so, it goes on", creates=True) as follower:
            make(cloud, proposal, follower, rollback=rollback)
    elif there == "up":
        cloud.tell(f"cluster {cloud.name} is up, as these settings have it")
        _print_view(cloud, output)
        return
    else:
        cloud.tell(f"cluster {cloud.name} is being created already")
    if not wait:
        cloud.tell(_go_on(cloud, "the creation goes on"))
        click.echo(cloud.name)
        return
    with _following(cloud, "the creation goes on", creates=True) as follower:
        follow_creation(cloud, follower)
    _print_view(cloud, output)
    _tell(text.next_commands(loaded.arguments))


def update(loaded: Loaded, *, output: str, yes: bool, wait: bool) -> None:
    from toolkit.flows.cluster_update import follow_update, propose_update
    from toolkit.flows.cluster_update import update as start_update

    cloud = _open(loaded)
    proposal = propose_update(cloud)
    if not proposal.changes:
        cloud.tell(f"cluster {cloud.name} is as these settings have it: nothing to change")
        return
    click.echo(proposal.diff, err=True, nl=False)
    _tell(text.update_lines(proposal))
    confirm(f"update cluster {cloud.name}", yes=yes)
    with _following(cloud, "the update may have begun"):
        start_update(cloud, proposal)
    if not wait:
        cloud.tell(_go_on(cloud, "the update goes on"))
        click.echo(cloud.name)
        return
    with _following(cloud, "the update goes on") as follower:
        follow_update(cloud, follower)
    _print_view(cloud, output)


def diff(loaded: Loaded, *, exit_code: bool) -> int:
    """Prints the difference; 1 if there is one and `exit_code` asks for it."""
    from toolkit.flows.cluster_update import diff as difference

    cloud = _open(loaded)
    differs = difference(cloud)
    click.echo(differs, nl=False)
    if not differs:
        cloud.tell(f"cluster {cloud.name} is as these settings have it")
    return 1 if differs and exit_code else 0


def describe(loaded: Loaded, *, output: str, wait: bool) -> None:
    cloud = _open(loaded)
    if wait:
        _wait(cloud)
    _print_view(cloud, output)


def delete(loaded: Loaded, *, yes: bool, delete_network: bool, not_mine: bool) -> None:
    from toolkit.errors import ToolkitError
    from toolkit.flows import cluster_delete as flow

    cloud = _open(loaded)
    deletion = flow.look(cloud)
    if not not_mine:
        flow.refuse_foreign(cloud, deletion)
    network = flow.look_at_network(cloud, deletion) if delete_network else None
    if deletion.cluster_is_there:
        _tell(text.deletion_lines(deletion, cloud.name))
    else:
        cloud.tell(f"cluster {cloud.name} is not there in {cloud.region}: nothing to delete")
        _tell(text.leftover_lines(deletion.stays))
        if network is None:
            return
        flow.refuse_held(network)
    if network and network.held:
        _tell(text.network_stays_lines(network, loaded.arguments))
        network = None
    confirm(text.deletion_question(deletion, cloud.name, network), yes=yes)
    with _following(cloud, "the deletion goes on", "toolkit cluster delete") as follower:
        try:
            flow.delete(cloud, deletion, follower)
            if network:
                flow.delete_own_network(cloud, network, follower)
        except ToolkitError:
            _tell(text.leftover_lines(flow.leftovers(cloud, deletion.resources)))
            raise
    _tell(text.leftover_lines(flow.leftovers(cloud, deletion.resources)))


def ssh(loaded: Loaded, command: tuple[str, ...]) -> int:
    """A shell on the head node, or one command there, whose exit code is returned."""
    from toolkit.flows.cluster_lookup import lookup_head
    from toolkit.flows.head_node import head_address

    cloud = _open(loaded)
    address = head_address(cloud.target, lookup_head)
    if address is None:
        raise click.UsageError("This machine is the cluster's head node.")
    if not command:
        _login(address)
    from toolkit.remote.ssh_head import SshHead

    head = SshHead(address)
    try:
        done = head.run(command, timeout=LONGEST_COMMAND)
    finally:
        head.close()
    click.echo(done.stdout, nl=False)
    click.echo(done.stderr, nl=False, err=True)
    return done.returncode


def _login(address: SshAddress) -> NoReturn:
    import sys

    from toolkit.remote.ssh_login import login

    if not sys.stdin.isatty():
        raise click.UsageError(
            "There is no terminal for a shell. Name a command: toolkit cluster ssh -- COMMAND"
        )
    login(address)


def _wait(cloud: Cloud) -> None:
    from toolkit.flows.cluster_failure import creation_failed, deletion_failed, update_failed
    from toolkit.flows.cluster_view import wait
    from toolkit.remote.aws_stack import stack_events

    with _following(cloud, "it goes on") as follower:
        state = wait(cloud, follower)
    if state is None:
        return
    if state.creation_failed:
        raise creation_failed(cloud, state)
    if state.status == "DELETE_FAILED":
        raise deletion_failed(cloud, state)
    if state.status.startswith("UPDATE_") and state.status != "UPDATE_COMPLETE":
        raise update_failed(cloud, state, stack_events(state.arn, cloud.region))


def _print_view(cloud: Cloud, output: str) -> None:
    from toolkit.flows.cluster_view import describe as look

    view = look(cloud)
    if output == "json":
        print_data(text.view_data(view), output)
        return
    _tell(text.view_lines(view))
    print_table(text.VIEW_COLUMNS, text.view_rows(view))


@contextmanager
def _following(
    cloud: Cloud, goes_on: str, command: str = "toolkit cluster describe --wait", *, creates: bool = False
) -> Iterator[Follower]:
    """Progress on stderr; Ctrl-C tells how it goes on without us, and of a network that is billed."""
    from toolkit.flows.cluster_progress import Follower

    try:
        with live_line() as (tell, live):
            yield Follower(tell, live)
    except KeyboardInterrupt:
        cloud.tell(_go_on(cloud, goes_on, command))
        if creates and cloud.target.network.create:
            cloud.tell(text.network_line(cloud.name, cloud.loaded.arguments))
        raise


def _go_on(cloud: Cloud, goes_on: str, command: str = "toolkit cluster describe --wait") -> str:
    words = command.split(" --")
    option = f" --{words[1]}" if len(words) > 1 else ""
    return f"{goes_on} without this command; `{words[0]} {cloud.loaded.arguments}{option}` follows it"


def _open(loaded: Loaded) -> Cloud:
    from toolkit.flows.provision import open_cloud

    return open_cloud(loaded, progress())


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line, err=True)
