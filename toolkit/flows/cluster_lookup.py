"""The head node of a target, asked of AWS: what `toolkit job` and `cluster ssh` need from a laptop."""

from __future__ import annotations

from toolkit.flows.head_node import HeadNode
from toolkit.remote.aws_head import find_head
from toolkit.settings.target import ParallelClusterTarget


def lookup_head(target: ParallelClusterTarget) -> HeadNode:
    """ToolkitError if there is none that runs, or AWS can't be asked."""
    found = find_head(target.cluster_name, target.region)
    return HeadNode(found.ip, found.console_output)
