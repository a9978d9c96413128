"""Runs the read-only probe of a node, ami-setup/probe.sh, and returns what it printed.

The script goes in on stdin, so that nothing need be installed on the node. A node of the cluster is reached
as a Slurm step from the head node, which works where ssh between nodes does not: inside a job of ours that
holds the node, else as a small job of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from toolkit.data import shipped
from toolkit.errors import ToolkitError
from toolkit.remote.head import Completed, Head, LocalHead

# Readings that hang take 10 s each; with a dead mount and no systemd many do.
PROBE_SECONDS = 150
DISK_SECONDS = 240
WAIT_FOR_NODE_SECONDS = 20
MARK = "== probe"


@dataclass(frozen=True)
class ProbeRequest:
    """What the probe looks at beside the node itself. `disk_speed`: folder to write 1 GiB into, and read."""

    paths: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    disk_speed: PurePosixPath | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            *(word for path in self.paths for word in ("--path", path)),
            *(word for port in self.ports for word in ("--port", str(port))),
            *(("--disk-speed", str(self.disk_speed)) if self.disk_speed else ()),
        )

    @property
    def seconds(self) -> int:
        return PROBE_SECONDS + (DISK_SECONDS if self.disk_speed else 0)


@dataclass(frozen=True)
class SlurmPlace:
    """A node as srun needs it. `job_id`: a job of ours that runs there, None if there is none."""

    node: str
    partition: str
    gpus: int = 0
    job_id: int | None = None


def probe_script() -> str:
    return shipped("ami-setup", "probe.sh").read_text(encoding="utf-8")


def probe_here(request: ProbeRequest) -> str:
    """Of this machine; raises ToolkitError when the probe can't be run."""
    return _output("this machine", _run(LocalHead(), (), request))


def probe_node(head: Head, place: SlurmPlace, request: ProbeRequest) -> str:
    """Of a node, through Slurm; raises ToolkitError with what srun said."""
    if place.job_id is not None:
        inside = ("srun", f"--jobid={place.job_id}", "--overlap", *_one_task(place))
        done = _run(head, inside, request)
        if done.stdout.startswith(MARK):
            return _output(place.node, done)
    alone = (
        *("srun", f"--partition={place.partition}", f"--immediate={WAIT_FOR_NODE_SECONDS}", "--time=10"),
        *("--job-name=toolkit-doctor", *_one_task(place)),
        # Without them a node that confines devices would show a step no GPU.
        *((f"--gres=gpu:{place.gpus}",) if place.gpus else ()),
    )
    return _output(place.node, _run(head, alone, request))


def _one_task(place: SlurmPlace) -> tuple[str, ...]:
    return (f"--nodelist={place.node}", "--nodes=1", "--ntasks=1", "--chdir=/", "--quiet")


def _run(head: Head, srun: Sequence[str], request: ProbeRequest) -> Completed:
    # A killed srun would leave its job behind; one that is told to end takes it along.
    limit = ("timeout", "--signal=TERM", "--kill-after=10", str(request.seconds)) if srun else ()
    argv = [*limit, *srun, "bash", "-s", "--", *request.arguments]
    return head.run(argv, stdin=probe_script(), timeout=request.seconds + 30)


def _output(node: str, done: Completed) -> str:
    if done.stdout.startswith(MARK):
        return done.stdout
    said = (done.stderr.strip() or done.stdout.strip())[-400:]
    if done.returncode == 124:
        said = f"no answer in time. {said}".strip()
    raise ToolkitError(f"the probe of {node} did not run: {said} (exit {done.returncode}).")
