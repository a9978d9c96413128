"""Changing a cluster that runs: what differs, whether pcluster would take it, and the update itself."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.cluster_create import send_scripts
from toolkit.flows.cluster_failure import update_failed
from toolkit.flows.cluster_progress import Follower, follow
from toolkit.flows.cluster_stored import require_stack, stored_config, unified_diff
from toolkit.flows.provision import Cloud, Proposal, propose, refusal, render_with_aws, told_by_pcluster
from toolkit.remote.aws_stack import StackState, stack_events
from toolkit.remote.pcluster_answer import Change, ValidationMessage
from toolkit.remote.pcluster_error import PclusterRefused


@dataclass(frozen=True)
class UpdateProposal:
    """`changes` are pcluster's; none: what runs is what the settings give. `validation`: its warnings."""

    proposal: Proposal
    changes: tuple[Change, ...]
    validation: tuple[ValidationMessage, ...]
    diff: str


def diff(cloud: Cloud) -> str:
    """Unified diff from the cluster's stored configuration to what the settings give; empty if equal. Makes
    nothing and checks nothing."""
    stored = stored_config(cloud, require_stack(cloud))
    return unified_diff(cloud.name, stored, render_with_aws(cloud, stored).config)


def propose_update(cloud: Cloud) -> UpdateProposal:
    """Our checks, then pcluster's dry run. SettingsError where the update can't be made: another version of
    ParallelCluster, a problem of the settings, or a change that pcluster refuses, each with its reason."""
    state = require_stack(cloud)
    _same_version(cloud, state)
    _can_be_updated(cloud, state)
    stored = stored_config(cloud, state)
    proposal = propose(cloud, stored=stored)
    text = unified_diff(cloud.name, stored, proposal.config)
    cloud.tell(f"pcluster {cloud.version}: validating the changes")
    try:
        outcome = cloud.pcluster.update_cluster(cloud.name, proposal.config, dry_run=True)
    except PclusterRefused as refused:
        raise _refused(cloud, proposal, refused) from refused
    return UpdateProposal(
        proposal,
        outcome.change_set if outcome.accepted else (),
        told_by_pcluster(proposal.plan, outcome),
        text,
    )


def update(cloud: Cloud, update: UpdateProposal) -> None:
    """Starts the update, which goes on by itself after this returns."""
    plan = update.proposal.plan
    send_scripts(cloud, plan)
    cloud.tell(f"pcluster {cloud.version}: making the templates of the update (about 10 s)")
    try:
        cloud.pcluster.update_cluster(cloud.name, update.proposal.config)
    except PclusterRefused as refused:
        raise _refused(cloud, update.proposal, refused) from refused


def follow_update(cloud: Cloud, follower: Follower) -> None:
    """Until the update is done; ToolkitError with what failed if it is taken back."""
    state = follow(cloud.name, cloud.region, follower)
    if state is None:
        raise ToolkitError(
            f"cluster {cloud.name} is gone: somebody deleted it.",
            next_step="`toolkit cluster create -f FILE` makes it anew",
        )
    if state.status != "UPDATE_COMPLETE":
        raise update_failed(cloud, state, stack_events(state.arn, cloud.region))


def _same_version(cloud: Cloud, state: StackState) -> None:
    if state.version != cloud.version:
        raise SettingsError(
            f"target.version: cluster {cloud.name} was made by ParallelCluster {state.version}, and the "
            f"settings name {cloud.version}. A cluster is updated only by the version that made it.",
            next_step=f"set target.version: {state.version}, or make a second cluster of version "
            f"{cloud.version} under another target.cluster_name and delete this one",
        )


def _can_be_updated(cloud: Cloud, state: StackState) -> None:
    if state.moving or not state.usable:
        raise SettingsError(
            f"cluster {cloud.name} is {state.status} and can't be updated now.",
            next_step="`toolkit cluster describe -f FILE --wait` follows it, or tells why it failed",
        )


def _refused(cloud: Cloud, proposal: Proposal, refused: PclusterRefused) -> ToolkitError:
    changes = [change for change in refused.outcome.change_set if change.refusal]
    if not changes:
        return refusal(proposal.plan, refused)
    lines = "\n".join(f"  {change}" for change in changes)
    return SettingsError(
        f"pcluster {cloud.version} can't make these changes to cluster {cloud.name} as it runs:\n{lines}",
        next_step="where the fleet must be stopped first: `toolkit cluster fleet "
        f"{cloud.loaded.arguments} stop`, which ends every job, then update, then the same with `start`. "
        "Otherwise take the change back, or make a second cluster",
    )
