"""What of a cluster that runs can't be changed, and so is kept from its stored configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolkit.plan.cluster import ClusterPlan, Script

OUR_SCRIPT = re.compile(r".*/verify-[0-9a-f]{12}\.sh")


def keep_head(plan: ClusterPlan, stored: Mapping[str, Any]) -> ClusterPlan:
    """`plan` with the head node's AMI and check script as the cluster was made with.

    pcluster refuses every update that would change one of them ("Update actions are not currently supported
    for the 'CustomAmi' parameter"). Queues take the new ones.
    """
    ami = (stored.get("Image") or {}).get("CustomAmi")
    actions = (stored.get("HeadNode") or {}).get("CustomActions") or {}
    sequence = (actions.get("OnNodeConfigured") or {}).get("Sequence") or []
    ours = [each for each in sequence if OUR_SCRIPT.fullmatch(str(each.get("Script", "")))]
    scripts = plan.head.scripts
    if ours:
        kept = Script(ours[0]["Script"], tuple(ours[0].get("Args") or ()))
        scripts = tuple(kept if script.content is not None else script for script in scripts)
    return replace(plan, head=replace(plan.head, ami=ami, scripts=scripts))
