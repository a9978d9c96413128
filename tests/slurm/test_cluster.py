"""The embedded cluster for real: Slurm's daemons in network namespaces, jobs, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli.cluster import cli
from toolkit.embedded import cluster, network
from toolkit.embedded.engine_env import STAMP
from toolkit.embedded.job_processes import _by_control_group, _by_environment
from toolkit.embedded.lock import cluster_lock
from toolkit.embedded.places import FREEZER, places
from toolkit.embedded.plan_codec import encode_plan
from toolkit.embedded.processes import all_pids, find_daemons
from toolkit.embedded.slurm_client import SlurmClient
from toolkit.embedded.state import ABSENT, BROKEN, CHANGED, UP
from toolkit.errors import ToolkitError
from toolkit.plan.embedded import EmbeddedPlan, NodePlan
from toolkit.testing.embedded_plan import embedded_plan

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

NETWORK = "10.78.0"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[EmbeddedPlan]:
    made = embedded_plan(tmp_path / "cluster", NETWORK, os.cpu_count() or 1)
    made = replace(made, engine_env=tmp_path / "engine")
    yield made
    cluster.delete(made, print)
    assert_nothing_left(made)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def up(plan: EmbeddedPlan, told: list[str]) -> EmbeddedPlan:
    assert cluster.create(plan, told.append, engine=False).state == UP
    told.clear()
    return plan


@pytest.fixture
def up_below_shared(plan: EmbeddedPlan, tmp_path: Path) -> Iterator[EmbeddedPlan]:
    """A cluster whose folder lies where the machine shares its mounts, as systemd does everywhere."""
    subprocess.run(["mount", "--bind", "--make-shared", tmp_path, tmp_path], check=True)
    try:
        assert cluster.create(plan, print, engine=False).state == UP
        yield plan
        cluster.delete(plan, print)
    finally:
        subprocess.run(["umount", "--recursive", tmp_path], check=True)


def assert_nothing_left(plan: EmbeddedPlan) -> None:
    where = places(plan)
    assert find_daemons(plan) == {}
    assert network.our_devices(where) == set()
    assert network.our_namespaces(where) == set()
    assert not where.run.exists()
    assert not where.spool.exists()
    assert list(FREEZER.glob(f"pd{plan.tag}*")) == []
    assert plan.tag not in Path("/proc/mounts").read_text()
    assert not plan.root.exists() or [path.name for path in plan.root.iterdir()] == ["log"]
    assert processes_with(f"SLURM_CONF={plan.slurm_conf}") == []


def processes_with(variable: str) -> list[int]:
    found = []
    for pid in all_pids():
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if variable.encode() in entries and pid != os.getpid():
            found.append(pid)
    return found


def slurm(plan: EmbeddedPlan, *argv: str) -> str:
    environment = os.environ | cluster.slurm_environment(plan)
    return subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def until(condition: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def submit(plan: EmbeddedPlan, node: NodePlan, folder: Path, body: str) -> Path:
    """Submits a job to `node`; returns its output file."""
    script, output = folder / f"{node.name}.sh", folder / f"{node.name}.out"
    script.write_text(f"#!/bin/bash\n{body}\n")
    gpus = [f"--gres=gpu:{node.gpus}"] if node.gpus else []
    slurm(plan, "sbatch", "-p", node.partition, "-w", node.name, *gpus, "-o", str(output), str(script))
    return output


def has_line(path: Path, line: str) -> bool:
    return path.is_file() and line in path.read_text().splitlines()


SLEEPER = "setsid sleep 1000 &\nsleep 1000 &\necho started\nwait"


def start_sleeper(plan: EmbeddedPlan, folder: Path) -> None:
    """A job on the first node that runs until it is ended."""
    output = submit(plan, plan.nodes[0], folder, SLEEPER)
    until(lambda: has_line(output, "started"))


def test_each_node_is_a_machine_of_its_own(up: EmbeddedPlan, tmp_path: Path) -> None:
    body = 'echo "$(hostname) $(hostname -I | xargs) ${CUDA_VISIBLE_DEVICES-none}"; taskset -pc $$; '
    body += "getent hosts decode-1; ls /dev/shm | wc -l; touch /dev/shm/mine; echo end"
    outputs = {node: submit(up, node, tmp_path, body) for node in up.nodes}
    for node, output in outputs.items():
        until(lambda output=output: has_line(output, "end"))
        lines = output.read_text().splitlines()
        gpus = ",".join(map(str, range(node.gpus))) or "none"
        assert lines[0] == f"{node.name} {node.address} {gpus}"
        cores = lines[1].rpartition(": ")[2]
        assert cores in (",".join(map(str, node.cores)), f"{node.cores[0]}-{node.cores[-1]}")
        assert lines[2].split() == [f"{NETWORK}.12", "decode-1"]
        assert lines[3] == "0"
    assert not Path("/dev/shm/mine").exists()


def test_scancel_kills_even_what_left_the_job(up: EmbeddedPlan, tmp_path: Path) -> None:
    outputs = [submit(up, node, tmp_path, SLEEPER) for node in up.nodes]
    until(lambda: all(has_line(output, "started") for output in outputs))
    jobs = SlurmClient(up.slurm_conf).jobs()
    assert {job.nodes for job in jobs} == {node.name for node in up.nodes}
    marks = [f"SLURM_JOB_ID={job.job_id}" for job in jobs]
    assert all(processes_with(mark) for mark in marks)
    slurm(up, "scancel", *(job.job_id for job in jobs))
    until(lambda: not SlurmClient(up.slurm_conf).jobs())
    conf = processes_with(f"SLURM_CONF={up.slurm_conf}")
    assert [pid for mark in marks for pid in processes_with(mark) if pid in conf] == []


def test_create_again_does_nothing_and_delete_ends_jobs(
    up: EmbeddedPlan, told: list[str], tmp_path: Path
) -> None:
    before = find_daemons(up)
    start_sleeper(up, tmp_path)
    assert cluster.create(up, told.append, engine=False).state == UP
    assert find_daemons(up) == before
    assert told == [f"cluster in {up.root}: up already"]
    state = cluster.describe(up)
    assert [job.nodes for job in state.jobs] == ["prefill-1"]
    assert set(state.daemons) == {"munged", "slurmctld", "prefill-1", "decode-1", "router-1"}
    for _ in range(2):
        cluster.delete(up, told.append)
        assert_nothing_left(up)
        assert cluster.describe(up).state == ABSENT
    assert "ending job" in told[1]
    assert "was not up" in told[-1]


def test_another_plan_restarts_it_but_not_under_jobs(
    up: EmbeddedPlan, told: list[str], tmp_path: Path
) -> None:
    start_sleeper(up, tmp_path)
    fewer = replace(up, nodes=up.nodes[1:], memory_mb=10000)
    assert cluster.describe(fewer).state == CHANGED
    with pytest.raises(ToolkitError, match="would end its jobs: 1"):
        cluster.create(fewer, told.append, engine=False)
    assert cluster.describe(up).state == UP
    assert cluster.create(fewer, told.append, engine=False, force=True).state == UP
    assert any("made from other settings" in line for line in told)
    assert set(find_daemons(fewer)) == {"munged", "slurmctld", "decode-1", "router-1"}


def test_create_after_every_daemon_was_killed(up: EmbeddedPlan, told: list[str], tmp_path: Path) -> None:
    start_sleeper(up, tmp_path)
    for pids in find_daemons(up).values():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    until(lambda: not find_daemons(up))
    assert cluster.describe(up).state == BROKEN
    with pytest.raises(ToolkitError, match=r"no munged runs.*would end its jobs: 1 \(processes \d+"):
        cluster.create(up, told.append, engine=False)
    assert len(processes_with("SLURMD_NODENAME=prefill-1")) >= 3
    assert cluster.create(up, told.append, engine=False, force=True).state == UP
    assert "no munged runs" in told[0]
    # The job outlived its slurmd and must not live on under the new one.
    assert processes_with("SLURMD_NODENAME=prefill-1") == []


def test_one_dead_slurmd_is_noticed(up: EmbeddedPlan, told: list[str]) -> None:
    os.kill(find_daemons(up)["decode-1"][0], signal.SIGKILL)
    until(lambda: "decode-1" not in find_daemons(up))
    assert cluster.describe(up).problems == ("no slurmd of decode-1 runs",)
    assert cluster.create(up, told.append, engine=False).state == UP


def lose_slurmctld(plan: EmbeddedPlan) -> None:
    """Kills it once its saved state has job 1 as running, which takes it some seconds."""
    slurm(plan, "scontrol", "update", "jobid=1", "comment=saved-now")
    until(lambda: b"saved-now" in (plan.root / "state" / "job_state").read_bytes())
    os.kill(find_daemons(plan)["slurmctld"][0], signal.SIGKILL)
    until(lambda: "slurmctld" not in find_daemons(plan))


def test_slurmctld_comes_back_and_the_job_goes_on(up: EmbeddedPlan, told: list[str], tmp_path: Path) -> None:
    start_sleeper(up, tmp_path)
    lose_slurmctld(up)
    state, daemons = cluster.describe(up), find_daemons(up)
    pids = processes_with("SLURMD_NODENAME=prefill-1")
    assert state.problems == ("no slurmctld runs", "slurmctld cannot be asked, but jobs run: 1")
    assert [(job.job_id, job.nodes) for job in state.jobs] == [("1", "prefill-1")]
    assert {("1", "prefill-1")} == {_by_environment(up, pid) for pid in pids}
    assert {("1", "prefill-1")} == {_by_control_group(up, pid) for pid in pids}
    assert cluster.create(up, told.append, engine=False).state == UP
    assert "restarting slurmctld" in told[0]
    assert slurm(up, "squeue", "-h", "-o", "%i %T %N") == "1 RUNNING prefill-1\n"
    assert processes_with("SLURMD_NODENAME=prefill-1") == pids
    assert daemons.items() < find_daemons(up).items()
    slurm(up, "scancel", "1")
    until(lambda: cluster.describe(up).jobs == ())
    assert processes_with("SLURMD_NODENAME=prefill-1") == []


@pytest.mark.parametrize("also", ["no state", "old state", "no slurmd", "other settings"])
def test_jobs_without_slurmctld_are_not_ended_unasked(
    up: EmbeddedPlan, told: list[str], tmp_path: Path, also: str
) -> None:
    start_sleeper(up, tmp_path)
    lose_slurmctld(up)
    pids, wanted = processes_with("SLURMD_NODENAME=prefill-1"), up
    if also == "no state":
        (up.root / "state" / "job_state").unlink()
    if also == "old state":
        os.utime(up.root / "state" / "job_state", (0, 0))
    if also == "no slurmd":
        os.kill(find_daemons(up)["decode-1"][0], signal.SIGKILL)
        until(lambda: "decode-1" not in find_daemons(up))
    if also == "other settings":
        wanted = replace(up, memory_mb=10000)
    with pytest.raises(ToolkitError, match=r"would end its jobs: 1 \(processes \d+, \d+"):
        cluster.create(wanted, told.append, engine=False)
    assert processes_with("SLURMD_NODENAME=prefill-1") == pids
    state = cluster.create(wanted, told.append, engine=False, force=True)
    assert (state.state, state.jobs) == (UP, ())
    assert processes_with("SLURMD_NODENAME=prefill-1") == []


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_delete_asks_about_jobs_that_slurmctld_does_not_tell(
    up: EmbeddedPlan, tmp_path: Path, fault: signal.Signals
) -> None:
    start_sleeper(up, tmp_path)
    os.kill(find_daemons(up)["slurmctld"][0], fault)
    argv = ["-f", str(REPOSITORY / "deployments" / "embedded.yaml"), "--set", f"target.root={up.root}"]
    asked = CliRunner().invoke(cli, ["delete", *argv])
    assert asked.exit_code != 0
    assert "This will end 1 job(s)" in asked.output + str(asked.exception)
    assert "jobs: 1 R process" in CliRunner().invoke(cli, ["describe", *argv]).stderr
    assert str(up.root) in CliRunner().invoke(cli, ["list"]).stdout
    assert processes_with("SLURMD_NODENAME=prefill-1") != []


def test_later_mounts_reach_nodes_and_theirs_stay_with_them(up_below_shared: EmbeddedPlan) -> None:
    shared = up_below_shared.root.parent
    for name in ("later", "theirs"):
        (shared / name).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "later", str(shared / "later")], check=True)
    body = f"mount -t tmpfs theirs {shared}/theirs; touch {shared}/theirs/file\nls {shared}/theirs; echo end"
    output = submit(up_below_shared, up_below_shared.nodes[0], shared / "later", body)
    until(lambda: has_line(output, "end"))
    assert has_line(output, "file")
    assert list((shared / "theirs").iterdir()) == []
    assert "theirs" not in Path("/proc/mounts").read_text()
    # Unmounting reaches them too: no node holds it. The job has its output open there until it is over.
    unmount = ["umount", str(shared / "later")]
    until(lambda: subprocess.run(unmount, capture_output=True, check=False).returncode == 0)
    nodes = [pids[0] for name, pids in find_daemons(up_below_shared).items() if name != "munged"]
    assert [pid for pid in nodes if "/later " in Path(f"/proc/{pid}/mounts").read_text()] == []


@pytest.mark.parametrize("lost", ["run", "root", "both"])
def test_folders_removed_under_a_live_cluster(up: EmbeddedPlan, told: list[str], lost: str) -> None:
    if lost != "root":
        shutil.rmtree(places(up).run)
    if lost != "run":
        shutil.rmtree(up.root)
    assert cluster.describe(up).state in (BROKEN, CHANGED)
    assert cluster.create(up, told.append, engine=False).state == UP
    if lost != "root":
        shutil.rmtree(places(up).run)
    if lost != "run":
        shutil.rmtree(up.root)
    cluster.delete(up, told.append)
    assert_nothing_left(up)


def test_network_removed_under_a_live_cluster(up: EmbeddedPlan, told: list[str]) -> None:
    network.down(up)
    assert "its network is not as planned" in cluster.describe(up).problems
    assert cluster.create(up, told.append, engine=False).state == UP


def test_network_in_use_names_the_device(plan: EmbeddedPlan, told: list[str]) -> None:
    device = f"x{plan.tag}"
    subprocess.run(["ip", "link", "add", device, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "address", "add", f"{NETWORK}.200/28", "dev", device], check=True)
        with pytest.raises(ToolkitError, match=f"device {device} has {NETWORK}.200/28") as caught:
            cluster.create(plan, told.append, engine=False)
        assert "target.network" in caught.value.next_step
    finally:
        subprocess.run(["ip", "link", "delete", device], check=True)


def test_two_clusters_live_side_by_side(up: EmbeddedPlan, told: list[str], tmp_path: Path) -> None:
    """Same node names, ports and job ids: what ends one must not touch the other."""
    nodes = tuple(replace(node, address=node.address.replace(NETWORK, "10.78.1")) for node in up.nodes)
    other = replace(up, root=tmp_path / "b", network="10.78.1.0/24", head_address="10.78.1.1", nodes=nodes)
    (tmp_path / "jobs").mkdir()
    try:
        assert cluster.create(other, told.append, engine=False).state == UP
        start_sleeper(up, tmp_path)
        start_sleeper(other, tmp_path / "jobs")
        assert [job.job_id for job in cluster.describe(other).jobs] == ["1"]
    finally:
        cluster.delete(other, told.append)
    assert_nothing_left(other)
    state = cluster.describe(up)
    assert state.state == UP
    assert [(job.job_id, job.state) for job in state.jobs] == [("1", "R")]
    conf = processes_with(f"SLURM_CONF={up.slurm_conf}")
    assert len([pid for pid in processes_with("SLURM_JOB_ID=1") if pid in conf]) >= 3


def test_killed_create_is_taken_up(plan: EmbeddedPlan, told: list[str]) -> None:
    """A create that dies as soon as slurmctld runs leaves nothing that stops the next."""
    code = (
        "import json, sys\n"
        "from toolkit.embedded import cluster\n"
        "from toolkit.embedded.plan_codec import decode_plan\n"
        "cluster.create(decode_plan(json.loads(sys.argv[1])), print, engine=False)\n"
    )
    argv = [sys.executable, "-c", code, json.dumps(encode_plan(plan))]
    child = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    until(lambda: "slurmctld" in find_daemons(plan) or child.poll() is not None)
    child.kill()
    child.wait()
    assert cluster.create(plan, told.append, engine=False).state == UP


def test_purge_removes_what_the_toolkit_made_only(up: EmbeddedPlan, told: list[str], tmp_path: Path) -> None:
    (up.root / "models" / "tiny-qwen3").mkdir(parents=True)
    (up.root / "notes.txt").write_text("mine")
    up.engine_env.mkdir()
    (up.engine_env / "pyvenv.cfg").write_text("")
    cluster.delete(up, told.append, purge=True)
    assert [path.name for path in up.root.iterdir()] == ["notes.txt"]
    assert "was not made by the toolkit and stays" in told[-1]
    (up.root / "notes.txt").unlink()
    (up.engine_env / STAMP).write_text('{"made": "by toolkit"}')
    cluster.delete(up, told.append, purge=True)
    assert list(tmp_path.iterdir()) == []


def test_a_second_command_waits_for_none(up: EmbeddedPlan, told: list[str]) -> None:
    with cluster_lock(up.root), pytest.raises(ToolkitError, match="another command"):
        cluster.delete(up, told.append)
    assert cluster.describe(up).state == UP


def test_state_needs_no_root(up: EmbeddedPlan) -> None:
    """Another user reads the state and submits, as on a shared machine."""
    for folder in (up.root, *up.root.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    argv = ["sinfo", "-h", "-N", "-o", "%t"]
    environment = os.environ | cluster.slurm_environment(up)
    done = subprocess.run(
        argv, env=environment, user=65534, group=65534, extra_groups=[], capture_output=True, text=True
    )
    assert done.stdout.split() == ["idle"] * 3, done.stderr
