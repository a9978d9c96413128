"""What every node needs, GPU or not: time, limits, shared folders, ports, shared memory."""

from __future__ import annotations

import re

from toolkit.doctor.check import Check
from toolkit.doctor.checks_efa import EFA_GUIDE, has_efa
from toolkit.doctor.finding import Unread, Verdict, error, ok, warning
from toolkit.doctor.node_facts import NodeFacts, shared_memory_kib
from toolkit.doctor.wanted import SharedFolder, Wanted

LEAST_OPEN_FILES = 4096
LEAST_FREE_KIB = 10 * 1024**2
MOUNT_LOST = "https://github.com/aws/aws-parallelcluster/issues/2095"
PORT_IN_USE = "https://github.com/ishandhanani/srt-slurm/pull/195"
LEFT_SEGMENTS = "https://github.com/PrimeIntellect-ai/prime-rl/pull/2331"
CHRONY_GUIDE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/set-time.html"
FSX_GUIDE = "https://docs.aws.amazon.com/fsx/latest/LustreGuide/performance.html"
VLLM_FILES = "vLLM raises its own soft limit of open files and warns below 65536"


def reached(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    if not facts.unreached:
        return ok("the node answers")
    if facts.no_fault:
        raise Unread(facts.unreached)
    return error(
        f"no probe of node {facts.node}",
        facts.unreached,
        cause="the node is down, or its slurmd does not take steps",
        next_step="`toolkit doctor cluster` says what Slurm thinks of it; on the node itself: "
        "`bash ami-setup/probe.sh >node.txt`, then `toolkit doctor node --from-file node.txt`",
    )


def time(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    reasons = []
    try:
        leap = re.search(r"Leap status\s*: (.+)", facts.probe.text("chrony"))
        if leap:
            return _synchronised(leap[1].strip() == "Normal", leap[0])
    except Unread as unread:
        reasons.append(unread.why)
    try:
        line = facts.probe.text("timedatectl")
        return _synchronised(line == "NTPSynchronized=yes", line)
    except Unread as unread:
        reasons.append(unread.why)
    raise Unread("; ".join(reasons))


def _synchronised(good: bool, evidence: str) -> Verdict:
    if good:
        return ok("the clock is synchronised", evidence)
    return warning(
        "the clock is not synchronised",
        evidence,
        cause="chrony does not reach the time service; Slurm's credentials and log times need equal clocks",
        next_step="`chronyc sources`; on AWS 169.254.169.123 must be among them",
    )


def memlock(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    limit = facts.limits["memlock"]
    if limit == "unlimited":
        return ok("locked memory is unlimited")
    return error(
        f"locked memory is limited to {limit} KiB",
        f"ulimit -l: {limit}",
        cause="EFA registers memory, which must be locked; a job has the limits of the shell it was "
        "submitted from (PropagateResourceLimits) or of slurmd",
        next_step="set `* - memlock unlimited` in /etc/security/limits.d and LimitMEMLOCK=infinity for "
        "slurmd; submit from a shell with that limit",
    )


def open_files(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    limit = facts.limits["nofile"]
    if limit == "unlimited" or int(limit) >= LEAST_OPEN_FILES:
        return ok(f"{limit} open files allowed")
    return warning(
        f"only {limit} open files allowed",
        f"ulimit -n: {limit}",
        cause="router and engines hold a connection and more for every request",
        next_step=f"raise nofile to {LEAST_OPEN_FILES} or more in /etc/security/limits.d and for slurmd",
    )


def shared_folders(facts: NodeFacts, wanted: Wanted) -> list[Verdict]:
    return [_shared_folder(facts, each) for each in wanted.shared]


def _shared_folder(facts: NodeFacts, wanted: SharedFolder) -> Verdict:
    try:
        found = facts.folder(wanted.path)
    except Unread as unread:
        return error(
            f"{wanted.path} can't be looked at",
            unread.why,
            cause="the file server does not answer, or the mount is stale",
            next_step="`mount -t lustre,nfs4`, then mount it again or reboot the node",
        )
    mount = f"{wanted.path} is on {found.mounted_on}, {found.filesystem} from {found.source}"
    if wanted.filesystem and found.filesystem != wanted.filesystem:
        return error(
            f"{wanted.path} is not on a {wanted.filesystem} volume",
            mount,
            cause="the shared volume is not mounted, often since a new kernel has no module for it",
            next_step="`sudo mount -a` and its messages; `uname -r` against the kernel of the image",
        )
    if wanted.needed and not found.exists:
        return error(
            f"{wanted.path} does not exist",
            mount,
            cause="nothing was put there yet, or another volume is mounted",
            next_step=f"`mkdir -p {wanted.path}` on the shared volume, or stage the model",
        )
    if not found.writable:
        return error(
            f"{wanted.path} can't be written",
            mount,
            cause="it belongs to another user, or the volume is mounted read-only",
            next_step=f"`ls -ld {wanted.path}`; give it to the user that submits jobs",
        )
    if found.free_kib < LEAST_FREE_KIB:
        return warning(
            f"{wanted.path} has {found.free_kib / 1024**2:.1f} GiB free",
            mount,
            cause="the volume is nearly full",
            next_step="remove old runs or models, or enlarge the volume",
        )
    return ok(f"{wanted.path}: {found.free_kib / 1024**2:,.0f} GiB free", mount)


def disk_speed(facts: NodeFacts, wanted: Wanted) -> Verdict:
    lines = [line for line in facts.probe.lines("disk_speed") if line.strip()]
    speeds = {line.split()[0]: _mb_per_s(line) for line in lines}
    if speeds.keys() != {"write", "read"}:
        raise Unread("`disk_speed` did not come to its end")
    told = ", ".join(f"{what} {speed:,.0f} MB/s" for what, speed in speeds.items())
    if min(speeds.values()) >= wanted.least_disk_mb_per_s:
        return ok(told, *lines)
    return warning(
        f"the shared volume is slow: {told}",
        *lines,
        cause="a small volume's throughput goes with its size, or others use it now",
        next_step="raise the file system's throughput; a model of 65 GB takes 2 minutes at 500 MB/s",
    )


def _mb_per_s(line: str) -> float:
    """dd: `1073741824 bytes (1.1 GB, 1.0 GiB) copied, 0.608171 s, 1.8 GB/s`."""
    match = re.search(r"(\d+) bytes .*copied, ([\d.]+) s", line)
    if match is None:
        raise Unread(f"dd said {line!r}")
    return int(match[1]) / 1e6 / float(match[2])


def ports(facts: NodeFacts, wanted: Wanted) -> list[Verdict]:
    return [_port(facts, port, wanted) for port in wanted.ports]


def _port(facts: NodeFacts, port: int, wanted: Wanted) -> Verdict:
    lines = facts.probe.lines(f"port {port}")
    if not lines:
        return ok(f"port {port} is free")
    if wanted.own_jobs:
        return ok(f"port {port} is held while {', '.join(wanted.own_jobs)} runs here", *lines)
    return error(
        f"port {port} is in use, and no job of this deployment runs here",
        *lines,
        cause="another user's server, or an engine that outlived its job",
        next_step=f"`sudo ss -ltnp 'sport = :{port}'` names the process; end it, or set another port",
    )


def shared_memory(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    size, free = shared_memory_kib(facts)
    if free * 5 >= size:
        return ok(f"/dev/shm: {free / 1024**2:.1f} of {size / 1024**2:.1f} GiB free")
    return warning(
        f"/dev/shm has {free / 1024**2:.1f} of {size / 1024**2:.1f} GiB free",
        *facts.probe.lines("shared_memory"),
        cause="engines that were killed leave their segments behind",
        next_step="with no job on the node, remove /dev/shm/psm_* and /dev/shm/vllm*",
    )


CHECKS: tuple[Check[NodeFacts], ...] = (
    Check("system.time", "`chronyc tracking`, else `timedatectl`", CHRONY_GUIDE, time),
    Check("system.memlock", "`ulimit -l`, where EFA is", EFA_GUIDE, memlock, has_efa),
    Check("system.open_files", "`ulimit -n`", VLLM_FILES, open_files),
    Check("system.shared_folders", "folders of the settings: mount, space", MOUNT_LOST, shared_folders),
    Check(
        "system.disk_speed",
        "1 GiB written and read past the cache, with --disk-speed",
        FSX_GUIDE,
        disk_speed,
        lambda facts, _: "disk_speed" in facts.probe,
    ),
    Check("system.ports", "listeners on the deployment's ports", PORT_IN_USE, ports),
    Check("system.shared_memory", "space in /dev/shm", LEFT_SEGMENTS, shared_memory),
)

REACHED = Check("system.reached", "whether the node can be probed at all", "this toolkit", reached)
