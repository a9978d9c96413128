"""The doctor's rounds: read a cluster or its nodes through the head node, and judge what was read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

from toolkit.doctor.cluster_facts import HEAD_FILES, ClusterFacts, Missing
from toolkit.doctor.engine_facts import EngineFacts
from toolkit.doctor.expect import (
    partition_names,
    wanted_of_cluster,
    wanted_on_machine,
    wanted_on_node,
)
from toolkit.doctor.finding import Finding
from toolkit.doctor.node_facts import NodeFacts, node_facts
from toolkit.doctor.probe import Probe
from toolkit.doctor.registry import check_cluster, check_engine, check_node
from toolkit.doctor.slurm_nodes import (
    SlurmNode,
    SlurmPartition,
    parse_nodes,
    parse_partitions,
)
from toolkit.doctor.wanted import Wanted
from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.run import list_runs
from toolkit.flows.target import OpenTarget
from toolkit.plan.aws_side import AwsSide
from toolkit.remote.head import Head
from toolkit.remote.node_probe import ProbeRequest, SlurmPlace, probe_here, probe_node
from toolkit.remote.slurm import JobState
from toolkit.settings.deployment import Deployment

Progress = Callable[[str], None]

AT_ONCE = 8
LOG_BYTES = 1_000_000  # of the end of each log on the head node
OUR_JOB = re.compile(r".+\.(prefill-\d+|decode-\d+|router|sweep)")


@dataclass(frozen=True)
class Report:
    """What was found about one `subject`: a node's name, `cluster`, or `engines`."""

    subject: str
    findings: tuple[Finding, ...]


def examine_cluster(
    settings: Deployment, target: OpenTarget, *, aws: AwsSide | None = None, now: float | None = None
) -> Report:
    """`aws`: what AWS says of it; without, the checks that need it are `unknown`."""
    wanted = wanted_of_cluster(settings, time.time() if now is None else now)
    facts = read_cluster(target, parallelcluster=wanted.parallelcluster, aws=aws)
    return Report("cluster", tuple(check_cluster(facts, wanted)))


def read_cluster(target: OpenTarget, *, parallelcluster: bool, aws: AwsSide | None) -> ClusterFacts:
    nothing = Missing("the head node was not reached")
    try:
        target.head.run(["true"], repeat=True)
    except ToolkitError as error:
        return ClusterFacts("", False, nothing, nothing, aws=aws, no_head=error.what)
    try:
        target.slurm.check()
    except ToolkitError as error:
        unread = Missing("Slurm's controller does not answer")
        up, said, nodes, partitions = False, str(error.what), unread, unread
        files = _head_files(target.head) if parallelcluster else {}
        return ClusterFacts(said, up, nodes, partitions, files, aws)
    return ClusterFacts(
        controller="scontrol ping: UP",
        controller_up=True,
        node_list=_read_nodes(target.head),
        partition_list=_read_partitions(target.head),
        files=_head_files(target.head) if parallelcluster else {},
        aws=aws,
    )


def _read_nodes(head: Head) -> tuple[SlurmNode, ...] | Missing:
    done = head.run(["scontrol", "show", "nodes", "--json"], repeat=True)
    if done.returncode != 0:
        # Slurm 22.05: only sinfo speaks JSON.
        done = head.run(["sinfo", "--json"], repeat=True)
    if done.returncode != 0:
        return Missing(f"sinfo: {done.stderr.strip()[-300:]}")
    try:
        return parse_nodes(done.stdout)
    except ToolkitError as error:
        return Missing(error.what)


def _read_partitions(head: Head) -> tuple[SlurmPartition, ...] | Missing:
    done = head.run(["scontrol", "show", "partition", "--oneliner"], repeat=True)
    if done.returncode != 0:
        return Missing(f"scontrol show partition: {done.stderr.strip()[-300:]}")
    return parse_partitions(done.stdout)


def _head_files(head: Head) -> dict[str, str | Missing]:
    return {path: _head_file(head, path) for path in HEAD_FILES}


def _head_file(head: Head, path: str) -> str | Missing:
    # /proc has no size to seek by.
    tail = None if path.startswith("/proc/") else LOG_BYTES
    try:
        text = head.get(PurePosixPath(path), tail=tail)
    except ToolkitError as error:
        return Missing(error.what)
    return Missing(f"{path} is not on the head node") if text is None else text


def examine_nodes(
    settings: Deployment,
    target: OpenTarget,
    names: Sequence[str],
    tell: Progress,
    *,
    disk_speed: bool = False,
) -> list[Report]:
    """The nodes of these names, or all of the deployment's partitions; several at once. Raises ToolkitError
    if Slurm does not answer, SettingsError for a name that it does not know."""
    target.slurm.check()
    known = _read_nodes(target.head)
    if isinstance(known, Missing):
        raise ToolkitError(known.why, next_step="`toolkit doctor cluster -f FILE`")
    chosen = _choose(known, names, partition_names(settings))
    states = target.slurm.states()

    def examine(node: SlurmNode) -> Report:
        here = [s for s in states.values() if s.nodes == node.name and s.state == "RUNNING" and _ours(s)]
        wanted = wanted_on_node(settings, node.partitions, target.runs, [state.name for state in here])
        request = _request(wanted, disk_speed=disk_speed, runs=target.runs)
        facts = _read_node(target.head, node, request, here[0].job_id if here else None)
        tell(f"{node.name}: {'could not be probed' if facts.unreached else 'probed'}")
        return Report(node.name, tuple(check_node(facts, wanted)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(examine, chosen))


def _ours(state: JobState) -> bool:
    return OUR_JOB.fullmatch(state.name) is not None


def _choose(known: Sequence[SlurmNode], names: Sequence[str], partitions: Sequence[str]) -> list[SlurmNode]:
    by_name: Mapping[str, SlurmNode] = {node.name: node for node in known}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise SettingsError(
            f"Slurm knows no node {', '.join(unknown)}.", next_step=f"its nodes: {', '.join(by_name)}"
        )
    return [by_name[name] for name in names] or [n for n in known if {*partitions} & {*n.partitions}]


def _request(wanted: Wanted, *, disk_speed: bool, runs: PurePosixPath | None) -> ProbeRequest:
    return ProbeRequest(
        paths=tuple(folder.path for folder in wanted.shared),
        ports=wanted.ports,
        disk_speed=runs if disk_speed else None,
    )


def _read_node(head: Head, node: SlurmNode, request: ProbeRequest, job_id: int | None) -> NodeFacts:
    if node.powered_down:
        return NodeFacts(node.name, Probe({}), f"Slurm says {node.state}: no instance runs", no_fault=True)
    if not node.probed:
        return NodeFacts(node.name, Probe({}), f"Slurm says {node.state}: {node.reason or 'no reason'}")
    place = SlurmPlace(node.name, node.partitions[0], node.gpus, job_id)
    try:
        return node_facts(probe_node(head, place, request), node.name)
    except ToolkitError as error:
        return NodeFacts(node.name, Probe({}), error.what, no_fault=node.in_use)


def examine_here(settings: Deployment | None, target: OpenTarget | None, *, disk_speed: bool) -> Report:
    """This machine, as a node of the deployment's GPU partition where there are settings."""
    wanted = _wanted_here(settings, target)
    runs = target.runs if target else PurePosixPath("/tmp")
    text = probe_here(_request(wanted, disk_speed=disk_speed, runs=runs))
    facts = node_facts(text)
    return Report(facts.node, tuple(check_node(facts, wanted)))


def examine_output(text: str, settings: Deployment | None, target: OpenTarget | None) -> Report:
    """A probe's output that was saved on a node of the GPU partition; touches no node. What the probe was not
    asked for there, such as the deployment's folders and ports, is not judged."""
    wanted = _wanted_here(settings, target)
    facts = node_facts(text)
    return Report(facts.node, tuple(check_node(facts, facts.only_what_was_asked(wanted))))


def _wanted_here(settings: Deployment | None, target: OpenTarget | None) -> Wanted:
    if settings is None or target is None:
        return wanted_on_machine()
    return wanted_on_node(settings, partition_names(settings)[:1], target.runs)


def examine_engines(
    settings: Deployment | None, target: OpenTarget | None, log: str | None, tell: Progress
) -> Report | None:
    """`log`: an engine's; the scripts are those of the newest run. None if there is neither."""
    wanted = _wanted_here(settings, target)
    facts = EngineFacts(log, _newest_scripts(target, tell) if target else {})
    findings = check_engine(facts, wanted)
    return Report("engines", tuple(findings)) if findings else None


def _newest_scripts(target: OpenTarget, tell: Progress) -> dict[str, str]:
    runs = list_runs(target, tell)
    if not runs:
        return {}
    run = max(runs, key=lambda each: each.record.submitted_at)
    texts = {job: target.head.get(run.folder.script(job)) for job in run.jobs}
    return {f"{run.name}/{job}": text for job, text in texts.items() if text is not None}
