"""The configuration that a cluster was made or last updated with, as pcluster keeps it."""

from __future__ import annotations

import difflib

from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.provision import Cloud
from toolkit.remote.aws_stack import StackState, stack_state
from toolkit.remote.aws_stored import read_url


def require_stack(cloud: Cloud) -> StackState:
    """The cluster's stack; SettingsError if there is no cluster of the name."""
    state = stack_state(cloud.name, cloud.region)
    if state is None or not state.version or state.status == "DELETE_COMPLETE":
        raise SettingsError(
            f"there is no cluster {cloud.name} in {cloud.region}.",
            next_step="`toolkit cluster create -f FILE` makes it; `toolkit cluster list -f FILE` shows what "
            "is there",
        )
    return state


def stored_config(cloud: Cloud, state: StackState) -> str:
    """The YAML text that pcluster was given, from its bucket."""
    cluster = cloud.pcluster_for(state.version).describe_cluster(cloud.name)
    if cluster is None or not cluster.config_url:
        raise ToolkitError(
            f"pcluster does not say where the configuration of cluster {cloud.name} is.",
            next_step="`toolkit cluster describe -f FILE` shows its state",
        )
    return read_url(cluster.config_url, f"the configuration of cluster {cloud.name}")


def unified_diff(name: str, stored: str, wanted: str) -> str:
    """From what runs to what the settings give; empty where they are equal."""
    lines = difflib.unified_diff(
        stored.splitlines(keepends=True),
        wanted.splitlines(keepends=True),
        f"cluster {name}",
        "settings",
    )
    return "".join(lines)
