"""Measures our router against vllm-router in one run and prints the table.

Exit code 1: a bound does not hold or cannot be judged here; 2: nothing could be measured. The router under
test has the first core for itself, stub engines and clients share the second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from bench.router import BenchFailed, check, machine, mapcost, peer, suite, table, targets
from bench.router.cited import CITED
from bench.router.client import Door
from bench.router.load import Bench
from bench.router.results import Report
from bench.router.stub import Pair, listener, serve
from bench.router.window import Cores


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.router", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: under 1.5 minutes")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--ours",
        metavar="CMD",
        help="another router in place of ours; {port} {prefill} {decode} {folder} {free} are filled in",
    )
    parser.add_argument("--form", choices=targets.FORMS, default="compiled", help="of our router")
    parser.add_argument("--only", choices=suite.GROUPS, action="append", help="repeatable")
    parser.add_argument(
        "--cited", action="store_true", help="show figures of other runs beside, named as such"
    )
    return parser.parse_args()


async def measure(given: argparse.Namespace, command: str, report: Report, groups: list[str]) -> None:
    """Starts both routers, looks at what they do and measures; fills the report. Raises BenchFailed."""
    cores = Cores(*machine.two_cores())
    plan = suite.QUICK if given.quick else suite.FULL
    pair, sockets = Pair(), (listener(), listener())
    prefill, decode = (
        Door(role, one.getsockname()[1]) for role, one in zip(("prefill", "decode"), sockets, strict=True)
    )
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = targets.Places(prefill.url, decode.url, folder, peer.installed())
        os.sched_setaffinity(0, {cores.load})
        await stack.enter_async_context(serve(pair, *sockets))
        ours, vllm_router, bare = [
            await stack.enter_async_context(targets.running(name, template, places, cores.router))
            for name, template in (("ours", command), ("vllm-router", targets.PEER), ("bare", targets.BARE))
        ]
        for router in (ours, vllm_router):
            report.remarks += await check.one_conversation(pair, router)
        bench = Bench(pair, (prefill, decode), cores, plan.warm_s, plan.window_s)
        chosen = [case for case in suite.cases(bench, plan, ours, vllm_router, bare) if case.group in groups]
        await suite.run(chosen, plan, report)


def run(given: argparse.Namespace) -> Report:
    """Raises BenchFailed."""
    command, missing = (given.ours, ()) if given.ours else targets.our_command(given.form)
    of_form = "" if given.ours else f", {given.form}, on {targets.interpreter(given.form)}"
    report = Report(
        machine.facts(of_form), {"command of ours": command, "command of vllm-router": targets.PEER}
    )
    if missing:
        report.remarks.append(f"not switched on, for this router has no such option: {', '.join(missing)}")
    groups = given.only or [group for group in suite.GROUPS if group != "map" or not given.ours]
    if "map" in groups:
        report.map_cost = mapcost.lines(mapcost.QUICK if given.quick else mapcost.FULL)
    if groups != ["map"]:
        uvloop.run(measure(given, command, report, groups))
    return report


def main() -> int:
    given = arguments()
    try:
        report = run(given)
    except BenchFailed as error:
        print(f"bench-router: {error}", file=sys.stderr)
        return 2
    if given.output == "json":
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print(table.text(report, CITED if given.cited else ()))
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
