"""The root side of the embedded target: the actions that `toolkit.embedded.privilege` may ask for.

As a program, `python -m toolkit.embedded.as_root ACTION`: request as JSON on stdin, answer on stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from toolkit.embedded import daemons, network, packages
from toolkit.embedded.plan_codec import decode_plan
from toolkit.embedded.slurm_conf import MachineFacts
from toolkit.errors import ToolkitError


def _install(request: Mapping[str, Any]) -> dict[str, object]:
    packages.install(tuple(request["packages"]))
    return {}


def _start(request: Mapping[str, Any]) -> dict[str, object]:
    plan = decode_plan(request["plan"])
    network.up(plan)
    daemons.start(plan, MachineFacts(**request["facts"]))
    return {}


def _resume(request: Mapping[str, Any]) -> dict[str, object]:
    daemons.start_slurmctld(decode_plan(request["plan"]))
    return {}


def _stop(request: Mapping[str, Any]) -> dict[str, object]:
    plan = decode_plan(request["plan"])
    daemons.stop(plan)
    network.down(plan)
    daemons.remove_folders(plan)
    return {}


ACTIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, object]]] = {
    "install": _install,
    "start": _start,
    "resume": _resume,
    "stop": _stop,
}


def main() -> None:
    try:
        answer = ACTIONS[sys.argv[1]](json.load(sys.stdin))
    except ToolkitError as error:
        answer = {"error": error.what, "next_step": error.next_step}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
