"""What is checked before anything starts: names, folder, packages, rights, the lock."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.embedded import packages
from toolkit.embedded.lock import cluster_lock
from toolkit.embedded.packages import ensure_packages, missing_packages
from toolkit.embedded.places import Places, places
from toolkit.embedded.plan_codec import decode_plan, encode_plan
from toolkit.embedded.preflight import check_root_folder, mounts_are_shared
from toolkit.errors import SettingsError, ToolkitError
from toolkit.plan.embedded import EmbeddedPlan

REPOSITORY = Path(__file__).parents[2]


def test_names_fit_the_kernel_and_belong_to_one_cluster(make_plan: Callable[..., EmbeddedPlan]) -> None:
    where = places(make_plan(Path("/srv/" + "long/" * 40)))
    assert len(where.veth(999)) <= 15
    assert len(str(where.munge_socket)) <= 107
    assert where.owns_device(where.bridge)
    assert where.owns_device(where.veth(12))
    other = Places("0" * 6)
    assert not where.owns_device(other.bridge)
    assert not where.owns_device(f"{where.bridge}x")
    assert not where.owns_namespace(other.namespace("prefill-1"))


def test_a_plan_survives_the_way_to_root(make_plan: Callable[..., EmbeddedPlan]) -> None:
    plan = make_plan(Path("/srv/cluster"))
    assert decode_plan(json.loads(json.dumps(encode_plan(plan)))) == plan


@pytest.mark.parametrize("folder", ["/srv/my cluster", "/srv/a#b", "/srv/100%", "/srv/[x]", "/srv/a,b"])
def test_a_folder_that_slurm_cannot_name_is_refused(
    folder: str, make_plan: Callable[..., EmbeddedPlan]
) -> None:
    with pytest.raises(SettingsError, match=r"target\.root"):
        check_root_folder(make_plan(Path(folder)))


def test_missing_packages_are_named_once_with_the_command(tmp_path: Path) -> None:
    assert missing_packages(str(tmp_path)) == (
        *("slurmctld", "slurmd", "slurm-client", "munge", "iproute2", "util-linux"),
    )
    with pytest.raises(ToolkitError, match="missing here: slurmctld") as caught:
        ensure_packages(str(tmp_path))
    assert caught.value.next_step == (
        "run: sudo apt-get install -y --no-install-recommends "
        "slurmctld slurmd slurm-client munge iproute2 util-linux"
    )


def test_services_are_refused_for_the_install_only(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with packages._services_refused(policy):
        assert subprocess.run([policy], check=False).returncode == 101
    assert not policy.exists()
    policy.write_text("theirs")
    with packages._services_refused(policy):
        assert policy.read_text() == "theirs"
    assert policy.read_text() == "theirs"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_without_root_the_next_step_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    code = (
        "import os, sys\n"
        "from toolkit.embedded.privilege import require_root\n"
        "from toolkit.errors import ToolkitError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: require_root(sys.argv[1])\n"
        "except ToolkitError as error: print(error)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    said = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert "needs root" in said
    assert "user id 65534" in said
    assert "`sudo -n` is not installed" in said
    assert "Next: run the same command as root" in said


def _try_lock(root: Path, answers: multiprocessing.Queue[str]) -> None:
    try:
        with cluster_lock(root):
            answers.put("locked")
    except ToolkitError as error:
        answers.put(str(error))


def test_a_second_command_is_told_who_holds_the_cluster(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    root = tmp_path / "cluster"
    with cluster_lock(root):
        other = context.Process(target=_try_lock, args=(root, answers))
        other.start()
        assert f"process {os.getpid()}" in answers.get(timeout=20)
        other.join()
    assert not root.exists()
    with cluster_lock(root):
        pass


@pytest.mark.parametrize(
    ("lines", "shared"),
    [
        (("1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw", "2 1 0:5 / /dev rw - tmpfs shared:7 rw"), True),
        (("1 0 8:1 / / rw - ext4 /dev/sda rw", "2 1 0:5 / /mnt rw shared:2 - tmpfs tmpfs rw"), False),
        (("1 0 8:1 / / rw master:1 - ext4 /dev/sda rw",), False),
        (("1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw", "2 1 0:5 / / rw master:3 - overlay none rw"), False),
        (("1 0 8:1 / / rw master:1 shared:4 - ext4 /dev/sda rw",), True),
        ((), False),
    ],
)
def test_mounts_reach_the_nodes_if_the_root_is_shared(
    lines: tuple[str], shared: bool, tmp_path: Path
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("".join(f"{line}\n" for line in lines))
    assert mounts_are_shared(table) == shared
