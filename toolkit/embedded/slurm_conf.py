"""The text of a cluster's configuration files. Pure: plan and facts of the machine in, text out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import groupby

from toolkit.embedded.places import places
from toolkit.plan.embedded import EmbeddedPlan, NodePlan

KILL_WAIT_SECONDS = 10


@dataclass(frozen=True)
class MachineFacts:
    """What the files depend on besides the plan. `hostname`: short name of this machine."""

    hostname: str
    has_freezer: bool


def configuration_files(plan: EmbeddedPlan, facts: MachineFacts) -> dict[str, str]:
    """File name in <root>/etc -> text. plan.json is how a later command knows which plan is up."""
    return {
        "slurm.conf": slurm_conf(plan, facts),
        "gres.conf": gres_conf(plan),
        "cgroup.conf": cgroup_conf(),
        "hosts": hosts(plan, facts),
        "plan.json": plan_json(plan),
    }


def slurm_conf(plan: EmbeddedPlan, facts: MachineFacts) -> str:
    where, root = places(plan), plan.root
    # As ParallelCluster has it where possible: proctrack/linuxproc signals children that cgroup leaves alone,
    # so a job script that forgets to `exec` would look right here and be killed there.
    proctrack = "cgroup" if facts.has_freezer else "linuxproc"
    lines = [
        f"ClusterName=pd{plan.tag}",
        f"SlurmctldHost={facts.hostname}({plan.head_address})",
        f"SlurmctldPort={plan.slurmctld_port}",
        f"SlurmdPort={plan.slurmd_port}",
        "# Listen on the private network only.",
        "CommunicationParameters=NoCtldInAddrAny",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "# A job requeued after a node failure waits as long as its credential lives (default 120 s).",
        f"AuthInfo=socket={where.munge_socket},cred_expire=5",
        f"StateSaveLocation={root}/state",
        f"SlurmdSpoolDir={where.spool}/%n",
        f"SlurmctldPidFile={where.run}/slurmctld.pid",
        f"SlurmdPidFile={where.run}/slurmd-%n.pid",
        f"SlurmctldLogFile={root}/log/slurmctld.log",
        f"SlurmdLogFile={root}/log/slurmd-%n.log",
        f"ProctrackType=proctrack/{proctrack}",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "# With the defaults a job that depends on another stays pending for 30 to 60 s.",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=10000,bf_interval=1",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "# A node offers more cores than the machine has; without this it would be drained.",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "EnforcePartLimits=ALL",
        "GresTypes=gpu",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={root}/log/jobcomp.log",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=15",
        f"KillWait={KILL_WAIT_SECONDS}",
        "MinJobAge=300",
        "MessageTimeout=10",
        *(_node_line(plan, node) for node in plan.nodes),
        *_partition_lines(plan),
    ]
    return "\n".join(lines) + "\n"


def _node_line(plan: EmbeddedPlan, node: NodePlan) -> str:
    gres = f" Gres=gpu:h200:{node.gpus}" if node.gpus else ""
    return (
        f"NodeName={node.name} NodeHostname={node.name} NodeAddr={node.address} CPUs={node.cpus} Boards=1 "
        f"SocketsPerBoard=1 CoresPerSocket={node.cpus} ThreadsPerCore=1 RealMemory={plan.memory_mb}{gres}"
    )


def _partition_lines(plan: EmbeddedPlan) -> list[str]:
    lines = []
    for index, (partition, members) in enumerate(groupby(plan.nodes, key=lambda node: node.partition)):
        names = ",".join(node.name for node in members)
        default = "NO" if index else "YES"
        lines.append(f"PartitionName={partition} Nodes={names} Default={default} DefaultTime=60 State=UP")
    return lines


def gres_conf(plan: EmbeddedPlan) -> str:
    """Slurm counts GPUs only by character devices, so each stands for a link to /dev/null."""
    return "".join(
        f"NodeName={node.name} Name=gpu Type=h200 File={plan.root}/dev/gpu[0-{node.gpus - 1}]\n"
        for node in plan.nodes
        if node.gpus
    )


def cgroup_conf() -> str:
    """Named outright: in a namespace slurmd finds no plugin by itself and does not start."""
    return "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n"


def hosts(plan: EmbeddedPlan, facts: MachineFacts) -> str:
    """/etc/hosts as the nodes see it."""
    entries = [("127.0.0.1", "localhost"), (plan.head_address, facts.hostname)]
    entries += [(node.address, node.name) for node in plan.nodes]
    return "".join(f"{address} {name}\n" for address, name in entries)


def plan_json(plan: EmbeddedPlan) -> str:
    """What makes two plans the same cluster: all but the engine environment and the model."""
    content = {key: value for key, value in asdict(plan).items() if key not in ("engine_env", "model")}
    return json.dumps(content, default=str, indent=1) + "\n"
