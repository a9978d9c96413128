"""Starts and stops a cluster's daemons as root: munged, slurmctld, and one slurmd in each node."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

from toolkit.embedded.places import FREEZER, places
from toolkit.embedded.processes import (
    all_pids,
    daemon_name,
    end,
    find_daemons,
    in_our_namespace,
    kill_all,
    of_our_jobs,
)
from toolkit.embedded.slurm_client import SlurmClient
from toolkit.embedded.slurm_conf import KILL_WAIT_SECONDS, MachineFacts, configuration_files
from toolkit.embedded.tools import tool
from toolkit.errors import ToolkitError
from toolkit.plan.embedded import EmbeddedPlan, NodePlan

# $1 host name, $2 hosts file, $3 empty folder, $4 the node's freezer group or empty, $5 where that goes,
# then the command. Already in the node's network and in mount, UTS and IPC namespaces of its own.
_ENTER_NODE = """set -e
hostname "$1"
mount --bind "$2" /etc/hosts
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup "$3"; fi
mount -t sysfs sysfs /sys                      # shows the devices of this network, not the machine's
if mountpoint -q "$3"; then mount --move "$3" /sys/fs/cgroup; fi
if [ -n "$4" ]; then mount --bind "$4" "$5"; fi
mount -t tmpfs -o mode=1777 shm /dev/shm       # a node shares no memory with another
shift 5
exec "$@"
"""

# slave: what the machine mounts or unmounts later shows here too, and nothing mounted here shows there.
_OWN_MOUNTS = ("--mount", "--propagation", "slave")

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

# $1 hosts file; then the command. slurmctld listens on the address that this machine's own name has.
_WITH_HOSTS = """set -e
mount --bind "$1" /etc/hosts
shift
exec "$@"
"""


def start(plan: EmbeddedPlan, facts: MachineFacts) -> None:
    """Starts every daemon on a network that is up, with nothing of the cluster running."""
    _make_folders(plan)
    for name, text in configuration_files(plan, facts).items():
        (plan.root / "etc" / name).write_text(text)
    where = places(plan)
    key = where.run / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    munge_files = {"key-file": key, "socket": where.munge_socket}
    munge_files |= {f"{kind}-file": where.run / f"munged.{kind}" for kind in ("pid", "log", "seed")}
    _run_daemon(plan, "munged", [tool("munged"), *(f"--{name}={path}" for name, path in munge_files.items())])
    # -c: jobs and node states of an earlier life of this cluster are not taken up again.
    start_slurmctld(plan, "-c")
    for node in plan.nodes:
        slurmd = [tool("slurmd"), "-f", str(plan.slurm_conf), "-N", node.name]
        _run_daemon(plan, f"slurmd of {node.name}", _in_node(plan, node, facts, slurmd))


def start_slurmctld(plan: EmbeddedPlan, *options: str) -> None:
    """Starts slurmctld alone; without `-c` it goes on with the jobs of its saved state."""
    slurmctld = [tool("slurmctld"), *options, "-f", str(plan.slurm_conf)]
    own = [*_OWN_MOUNTS, "sh", "-c", _WITH_HOSTS, "head", str(plan.root / "etc" / "hosts")]
    _run_daemon(plan, "slurmctld", [tool("unshare"), *own, *slurmctld])


def stop(plan: EmbeddedPlan) -> None:
    """Ends jobs, then daemons, then whatever of them is left. Nothing running is no error."""
    daemons = find_daemons(plan)
    if "slurmctld" in daemons and "munged" in daemons and plan.slurm_conf.exists():
        SlurmClient(plan.slurm_conf).cancel_all(wait=KILL_WAIT_SECONDS + 5)
    slurm = [pid for name, pids in daemons.items() if name != "munged" for pid in pids]
    orderly = (signal.SIGTERM, signal.SIGKILL)
    end(slurm, lambda pid: daemon_name(plan, pid) is not None, signals=orderly, grace=5.0)
    # What outlived its daemon: steps, job processes, and daemons that forked meanwhile.
    kill_all(in_our_namespace(places(plan)))
    kill_all(of_our_jobs(plan))
    end(all_pids(), lambda pid: daemon_name(plan, pid) is not None, signals=orderly, grace=2.0)
    left = find_daemons(plan)
    if left:
        raise ToolkitError(
            f"these daemons do not end: {left}",
            next_step="`ps -o pid,stat,wchan -p PID` shows what holds them",
        )


def remove_folders(plan: EmbeddedPlan) -> None:
    """Removes what only a running cluster needs: control groups, sockets, configuration, state. Logs stay."""
    for group in FREEZER.glob(f"pd{plan.tag}-*"):
        _remove_group(group)
    where = places(plan)
    for folder in (where.run, where.spool, *(plan.root / name for name in ("etc", "state", "dev"))):
        # A folder that is gone already is what we want; any other failure is told.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _make_folders(plan: EmbeddedPlan) -> None:
    where = places(plan)
    for folder in (where.run, where.spool, *(plan.root / name for name in ("etc", "state", "log", "dev"))):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    for node in plan.nodes:
        (where.spool / node.name).mkdir(exist_ok=True)
        (where.run / f"cgroup-{node.name}").mkdir(exist_ok=True)
    for name in ("slurmctld", *(f"slurmd-{node.name}" for node in plan.nodes)):
        # Made here, or Slurm makes it for root only and the user's commands could not show its end.
        log = plan.root / "log" / f"{name}.log"
        log.touch()
        log.chmod(0o644)
    for index in range(max(node.gpus for node in plan.nodes)):
        link = plan.root / "dev" / f"gpu{index}"
        if not link.is_symlink():
            link.symlink_to("/dev/null")


def _in_node(plan: EmbeddedPlan, node: NodePlan, facts: MachineFacts, command: list[str]) -> list[str]:
    """`command` as it runs on the node: its network, host name, hosts, control groups, cores."""
    where = places(plan)
    group = where.freezer(node.name)
    if facts.has_freezer:
        group.mkdir(exist_ok=True)
    return [
        *(tool("nsenter"), f"--net=/run/netns/{where.namespace(node.name)}"),
        *(tool("unshare"), *_OWN_MOUNTS, "--uts", "--ipc"),
        *("sh", "-c", _ENTER_NODE, "node", node.name, str(plan.root / "etc" / "hosts")),
        *(str(where.run / f"cgroup-{node.name}"), str(group) if facts.has_freezer else "", str(FREEZER)),
        *(tool("taskset"), "--cpu-list", ",".join(map(str, node.cores)), *command),
    ]


def _run_daemon(plan: EmbeddedPlan, name: str, argv: list[str]) -> None:
    """Runs a program that goes to the background once it is up; its output goes to log/start.log."""
    log = plan.root / "log" / "start.log"
    with log.open("ab") as output:
        begin = output.tell()
        # Not a pipe: a daemon that keeps its output open would hold us until it ends. And nothing of the
        # caller's environment, which may hold secrets and lives as long as the daemon.
        done = subprocess.run(
            argv, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
    if done.returncode != 0:
        said = log.read_bytes()[begin:].decode(errors="replace").strip()
        raise ToolkitError(
            f"{name} did not start (exit code {done.returncode}): {said[-1500:] or 'it said nothing'}",
            next_step=f"its log is in {plan.root / 'log'}",
        )


def _remove_group(group: Path, patience: float = 3.0) -> None:
    """Removes a control group with those inside; the kernel refuses until its last process is reaped."""
    deadline = time.monotonic() + patience
    for folder in (*sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True), group):
        while folder.exists():
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ToolkitError(f"cannot remove control group {folder}: {error.strerror}") from error
                time.sleep(0.02)
