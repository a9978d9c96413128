"""What an embedded cluster is right now, read from its processes, devices and files."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from toolkit.embedded import network
from toolkit.embedded.job_processes import jobs_from_processes, saved_state_has
from toolkit.embedded.places import FREEZER, places
from toolkit.embedded.processes import all_pids, command_line, find_daemons
from toolkit.embedded.slurm_client import JobStatus, NodeStatus, SlurmClient
from toolkit.embedded.slurm_conf import MachineFacts, configuration_files
from toolkit.embedded.tools import find_tool
from toolkit.errors import ToolkitError
from toolkit.plan.embedded import EmbeddedPlan

# Daemons and network exist and agree with the plan; so does every node.
UP = "up"
# Nothing of it runs or exists.
ABSENT = "absent"
# It works, but was made from other settings.
CHANGED = "changed"
# Something of it is missing or unfit.
BROKEN = "broken"

_NO_DAEMON = "no {} runs"
_NO_SLURMCTLD = _NO_DAEMON.format("slurmctld")


@dataclass(frozen=True)
class NodeState:
    name: str
    partition: str
    state: str
    reason: str
    address: str
    gpus: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class ClusterState:
    """`state`: one of the words above; `problems`: why it is not "up", one sentence each.

    `jobs` are slurmctld's, or, when it cannot be asked, those that have processes. `resumable`: it lacks
    slurmctld only, which can be started again without ending them.
    """

    state: str
    problems: tuple[str, ...]
    root: Path
    slurm_conf: Path
    nodes: tuple[NodeState, ...]
    daemons: dict[str, int]
    jobs: tuple[JobStatus, ...]
    resumable: bool = False


def machine_facts() -> MachineFacts:
    # Existence, not writability: the daemons are root's even when this process is not.
    return MachineFacts(socket.gethostname().split(".")[0], (FREEZER / "cgroup.procs").exists())


def read_state(plan: EmbeddedPlan) -> ClusterState:
    """The state of the cluster in plan.root, against `plan`. Needs no root; takes about 0.1 s."""
    daemons = find_daemons(plan)
    where = places(plan)
    leftovers = network.our_devices(where) | network.our_namespaces(where)
    statuses, jobs, unheard = _ask_slurm(plan, "slurmctld" in daemons)
    missing, changed = _missing(plan, daemons), _changed_files(plan)
    problems = missing + unheard + _unfit(plan, statuses)
    if not daemons and not leftovers and not jobs:
        state, problems = ABSENT, []
    elif problems and not _serves_another_plan(plan, changed, daemons):
        state = BROKEN
    elif changed:
        state, problems = CHANGED, [f"it was made from other settings ({', '.join(changed)} differ)"]
    else:
        state = UP
    return ClusterState(
        state=state,
        problems=tuple(problems),
        root=plan.root,
        slurm_conf=plan.slurm_conf,
        nodes=_node_states(plan, statuses),
        daemons={name: pids[0] for name, pids in sorted(daemons.items())},
        jobs=jobs,
        resumable=missing == [_NO_SLURMCTLD] and not changed and saved_state_has(plan, jobs),
    )


def running_roots() -> list[Path]:
    """Root folders of every embedded cluster of which slurmctld or a slurmd runs on this machine."""
    roots = set()
    for pid in all_pids():
        argv = command_line(pid)
        if argv and Path(argv[0]).name in ("slurmctld", "slurmd") and "-f" in argv[:-1]:
            conf = Path(argv[argv.index("-f") + 1])
            if (conf.parent / "plan.json").is_file():
                roots.add(conf.parent.parent)
    return sorted(roots)


def _ask_slurm(
    plan: EmbeddedPlan, runs: bool
) -> tuple[dict[str, NodeStatus], tuple[JobStatus, ...], list[str]]:
    """Nodes, jobs, and what is wrong when slurmctld does not tell them: then the jobs are those seen."""
    problems = []
    if runs:
        client = SlurmClient(plan.slurm_conf)
        try:
            return client.nodes(), tuple(client.jobs()), []
        except ToolkitError as error:
            problems.append(error.what)
    jobs = jobs_from_processes(plan)
    if jobs:
        problems.append(f"slurmctld cannot be asked, but jobs run: {', '.join(job.job_id for job in jobs)}")
    return {}, jobs, problems


def _missing(plan: EmbeddedPlan, daemons: dict[str, list[int]]) -> list[str]:
    wanted = ["munged", "slurmctld", *(node.name for node in plan.nodes)]
    spoken = {node.name: f"slurmd of {node.name}" for node in plan.nodes}
    problems = [_NO_DAEMON.format(spoken.get(name, name)) for name in wanted if name not in daemons]
    if not find_tool("ip") or not network.is_up(plan):
        problems.append("its network is not as planned")
    if not places(plan).munge_socket.exists():
        problems.append("munged's socket is gone")
    return problems


def _unfit(plan: EmbeddedPlan, statuses: dict[str, NodeStatus]) -> list[str]:
    return [
        f"node {node.name} is {status.state}" + (f": {status.reason}" if status.reason else "")
        for node in plan.nodes
        if (status := statuses.get(node.name)) and not status.fit
    ]


def _changed_files(plan: EmbeddedPlan) -> list[str]:
    changed = []
    for name, text in configuration_files(plan, machine_facts()).items():
        path = plan.root / "etc" / name
        if not path.is_file() or path.read_text() != text:
            changed.append(name)
    return changed


def _serves_another_plan(plan: EmbeddedPlan, changed: list[str], daemons: dict[str, list[int]]) -> bool:
    """Whether daemons run as some other plan of this root wanted, so that nothing is broken."""
    return "plan.json" in changed and {"munged", "slurmctld"} <= daemons.keys() and plan.slurm_conf.is_file()


def _node_states(plan: EmbeddedPlan, statuses: dict[str, NodeStatus]) -> tuple[NodeState, ...]:
    unknown = NodeStatus("absent", "")
    return tuple(
        NodeState(
            name=node.name,
            partition=node.partition,
            state=statuses.get(node.name, unknown).state,
            reason=statuses.get(node.name, unknown).reason,
            address=node.address,
            gpus=node.gpus,
            cores=node.cores,
        )
        for node in plan.nodes
    )
