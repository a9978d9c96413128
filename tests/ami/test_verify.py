"""verify.sh as nodes get it, with commands that print what the vendors' print: each fault is told."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import pytest

from toolkit.plan.node_check import node_check
from toolkit.plan.node_software import node_software, verify_arguments

SOFTWARE = node_software()

# /proc/driver/nvidia/version of open modules (NVIDIA/open-gpu-kernel-modules prints this form).
NVRM = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {0}  Release Build  (dvs-builder@U22-I3)  Thu Jan 15
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
# fi_info prints one such block a device (libfabric, man fi_info).
FI_INFO = """\
provider: efa
    fabric: efa
    domain: rdmap79s0-rdm
    version: 206.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
"""
DKMS = "".join(
    f"{module}, 6.14.0-1018-aws, x86_64: installed\n"
    for module in ("efa-nv-peermem/1.2.3", "efa/3.3.0", "gdrdrv/2.5", "nvidia/580.126.16")
)
MODINFO = (
    'case "$2-$3" in version-nvidia) echo {0};; license-nvidia) echo "{1}";; version-efa) echo {2};; esac'
)


@dataclass
class Node:
    """A folder that stands for a node's files, and the commands on its PATH."""

    root: Path
    arguments: list[str] = field(default_factory=lambda: list(arguments("gpu")))

    def command(self, name: str, script: str) -> None:
        path = self.root / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def prints(self, name: str, text: str, status: int = 0) -> None:
        self.command(name, f"printf %s {shlex.quote(text)}; exit {status}")

    def file(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def verify(self) -> subprocess.CompletedProcess[str]:
        script = self.root / "verify.sh"
        script.write_text(node_check())
        environment = {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", str(script), *self.arguments, "--root", str(self.root)],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            check=False,
        )


def arguments(role: str) -> tuple[str, ...]:
    assert role in ("gpu", "head", "router")
    return verify_arguments(role, SOFTWARE, efa_devices=16, mounts=["/fsx"])  # type: ignore[arg-type]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.file("proc/driver/nvidia/version", NVRM.format("580.126.16"))
    node.file("proc/mounts", "10.0.0.5@tcp:/abcdefgh /fsx lustre rw,flock 0 0\n")
    node.file(
        "opt/amazon/efa_installed_packages", "# EFA installer version: 1.50.0\n# Packages installed:\nefa\n"
    )
    for device in range(16):
        node.file(f"sys/class/infiniband/rdmap{device}s0/node_type", "1: CA\n")
    (tmp_path / "usr/local/cuda-13.0").mkdir(parents=True)
    (tmp_path / "usr/local/cuda").symlink_to(tmp_path / "usr/local/cuda-13.0")
    for program in ("opt/pd/engine/bin/vllm", "opt/pd/toolkit/bin/toolkit"):
        node.file(program).chmod(0o755)
    node.prints("nvidia-smi", "580.126.16\n" * 8)
    node.prints("nv-fabricmanager", "Fabric Manager version is : 580.126.16\n")
    node.prints("uname", "6.14.0-1018-aws\n")
    node.prints("dkms", DKMS)
    node.prints("fi_info", FI_INFO * 16)
    node.command("modinfo", MODINFO.format("580.126.16", "Dual MIT/GPL", "3.3.0g"))
    return node


@pytest.mark.parametrize("role", ["gpu", "head", "router"])
def test_a_good_node_passes(node: Node, role: str) -> None:
    node.arguments = list(arguments(role))
    done = node.verify()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"pd-verify: this {role} node is as expected\n"


def test_a_cpu_node_needs_nothing_of_a_gpu_node(tmp_path: Path) -> None:
    node = Node(tmp_path, list(arguments("router")))
    node.file("proc/mounts", "10.0.0.5@tcp:/abcdefgh /fsx lustre rw,flock 0 0\n")
    node.file("opt/pd/toolkit/bin/toolkit").chmod(0o755)
    done = node.verify()
    assert (done.returncode, done.stderr) == (0, "")


def nothing_is_written(root: Path) -> set[tuple[str, int]]:
    return {(str(path), path.lstat().st_mtime_ns) for path in root.rglob("*") if path.name != "verify.sh"}


def test_it_changes_nothing(node: Node) -> None:
    node.verify()
    before = nothing_is_written(node.root)
    node.verify()
    assert nothing_is_written(node.root) == before


FAULTS: dict[str, tuple[Callable[[Node], object], str]] = {
    "another module is loaded": (
        lambda node: node.file("proc/driver/nvidia/version", NVRM.format("570.172.08")),
        "loaded nvidia module: expected 580.126.16, found 570.172.08;",
    ),
    "no module is loaded": (
        lambda node: (node.root / "proc/driver/nvidia/version").unlink(),
        "loaded nvidia module: expected 580.126.16, found nothing;",
    ),
    "another module on disk": (
        lambda node: node.command("modinfo", MODINFO.format("580.178.04", "Dual MIT/GPL", "3.3.0g")),
        "nvidia module on disk: expected 580.126.16, found 580.178.04;",
    ),
    "the closed module": (
        lambda node: node.command("modinfo", MODINFO.format("580.126.16", "NVIDIA", "3.3.0g")),
        "licence of the nvidia module: expected Dual MIT/GPL, found NVIDIA;",
    ),
    "nvidia-smi of another version": (
        lambda node: node.prints(
            "nvidia-smi",
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.178\n",
            18,
        ),
        "nvidia-smi: expected 580.126.16, found Failed to initialize NVML: Driver/library version mismatch",
    ),
    "fabric manager of another version": (
        lambda node: node.prints("nv-fabricmanager", "Fabric Manager version is : 570.172.08\n"),
        "fabric manager: expected 580.126.16, found 570.172.08;",
    ),
    "no fabric manager": (
        lambda node: (node.root / "bin/nv-fabricmanager").unlink(),
        "fabric manager: expected 580.126.16, found nothing;",
    ),
    "another kernel": (
        lambda node: node.prints("uname", "6.14.0-1019-aws\n"),
        "running kernel: expected 6.14.0-1018-aws, found 6.14.0-1019-aws;",
    ),
    "a module that is not built": (
        lambda node: node.prints(
            "dkms", DKMS.replace("gdrdrv/2.5, 6.14.0-1018-aws, x86_64: installed", "gdrdrv/2.5: added")
        ),
        "gdrdrv in dkms for 6.14.0-1018-aws: expected installed, found added;",
    ),
    "a module that is absent": (
        lambda node: node.prints("dkms", DKMS.replace("efa-nv-peermem", "other")),
        "efa-nv-peermem in dkms for 6.14.0-1018-aws: expected installed, found absent;",
    ),
    "CUDA of another version": (
        lambda node: ((node.root / "usr/local/cuda").unlink(), (node.root / "usr/local/cuda").mkdir()),
        "/usr/local/cuda: expected ",
    ),
    "another EFA installer": (
        lambda node: node.file("opt/amazon/efa_installed_packages", "# EFA installer version: 1.43.2\n"),
        "EFA installer: expected 1.50.0, found 1.43.2;",
    ),
    "no EFA installer": (
        lambda node: (node.root / "opt/amazon/efa_installed_packages").unlink(),
        "EFA installer: expected 1.50.0, found nothing;",
    ),
    "another efa module": (
        lambda node: node.command("modinfo", MODINFO.format("580.126.16", "Dual MIT/GPL", "2.17.2g")),
        "efa module: expected 3.3.0g, found 2.17.2g;",
    ),
    "a missing EFA device": (
        lambda node: (node.root / "sys/class/infiniband/rdmap3s0").rename(node.root / "elsewhere"),
        "EFA devices in /sys/class/infiniband: expected 16, found 15;",
    ),
    "no EFA device, and so no folder for them": (
        lambda node: (node.root / "sys/class/infiniband").rename(node.root / "elsewhere"),
        "EFA devices in /sys/class/infiniband: expected 16, found 0;",
    ),
    "no EFA provider": (
        lambda node: node.prints("fi_info", "fi_getinfo: -61 (No data available)\n", 61),
        "fi_info -p efa -t FI_EP_RDM: expected provider: efa, found fi_getinfo: -61 (No data available);",
    ),
    "no engine": (
        lambda node: (node.root / "opt/pd/engine/bin/vllm").unlink(),
        "engine environment: expected /opt/pd/engine/bin/vllm, found nothing;",
    ),
    "no toolkit": (
        lambda node: (node.root / "opt/pd/toolkit/bin/toolkit").unlink(),
        "toolkit environment: expected /opt/pd/toolkit/bin/toolkit, found nothing;",
    ),
    "no shared volume": (
        lambda node: node.file("proc/mounts", "10.0.0.5@tcp:/abcdefgh /fsx2 lustre rw,flock 0 0\n"),
        "shared volume: expected /fsx mounted, found nothing;",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_one_line_and_fails_the_node(node: Node, fault: str) -> None:
    spoil, line = FAULTS[fault]
    spoil(node)
    done = node.verify()
    assert (done.returncode, done.stdout) == (1, "")
    [told] = done.stderr.splitlines()
    assert told.startswith(f"pd-verify: {line}")
    assert "; " in told, "a next step is named"


def test_every_fault_is_told_at_once(node: Node) -> None:
    for fault in ("another EFA installer", "no engine", "no shared volume"):
        FAULTS[fault][0](node)
    assert len(node.verify().stderr.splitlines()) == 3


def test_a_command_that_is_absent_or_fails_is_a_fault_not_a_crash(node: Node) -> None:
    for name in ("nvidia-smi", "modinfo", "dkms"):
        node.prints(name, "", 1)
    (node.root / "bin/fi_info").unlink()
    lines = node.verify().stderr.splitlines()
    assert {line.split(": ")[1] for line in lines} == {
        "nvidia module on disk",
        "licence of the nvidia module",
        "nvidia-smi",
        *(f"{name} in dkms for 6.14.0-1018-aws" for name in ("nvidia", "efa", "efa-nv-peermem", "gdrdrv")),
        "efa module",
        "fi_info -p efa -t FI_EP_RDM",
    }


# What ends or cuts a line where a script takes words of it for syntax, and what acts on a terminal.
ODD = (
    "couldn't talk to the driver",
    "unbalanced ' and \" and `",
    "$(exit 3) ${x:?y} \\",
    "-n --help -e",
    "* ? [a",
    "a\nb\n\nc",
    "\x1b[2Jgone\r",
    "é \udcff\udc80 binary",
    "",
    "x" * 100_000,
)
COMMANDS = ("nvidia-smi", "nv-fabricmanager", "uname", "dkms", "fi_info", "modinfo")


@pytest.mark.parametrize(
    ("text", "status"), [*zip(ODD, cycle((1, 0, 139)), strict=False)], ids=map(str, range(len(ODD)))
)
def test_whatever_the_tools_print_every_check_is_made(node: Node, text: str, status: int) -> None:
    file = node.root / "odd"
    file.write_bytes(text.encode(errors="surrogateescape"))
    for name in COMMANDS:
        node.command(name, f"cat {file}; cat {file} >&2; exit {status}")
    for name in ("proc/driver/nvidia/version", "opt/amazon/efa_installed_packages", "proc/mounts"):
        (node.root / name).write_bytes(text.encode(errors="surrogateescape"))
    for name in (
        "no EFA device, and so no folder for them",
        "CUDA of another version",
        "no engine",
        "no toolkit",
    ):
        FAULTS[name][0](node)
    done = node.verify()
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert all(len(line) < 700 and "\x1b" not in line for line in lines)
    assert [line.partition(": ")[2].partition(": expected ")[0] for line in lines] == [
        *("loaded nvidia module", "nvidia module on disk", "licence of the nvidia module", "nvidia-smi"),
        *("fabric manager", "running kernel"),
        *(f"{name} in dkms for 6.14.0-1018-aws" for name in ("nvidia", "efa", "efa-nv-peermem", "gdrdrv")),
        *("/usr/local/cuda", "EFA installer", "efa module", "EFA devices in /sys/class/infiniband"),
        *("fi_info -p efa -t FI_EP_RDM", "engine environment", "toolkit environment", "shared volume"),
    ]


@pytest.mark.parametrize("wrong", [[], ["prefill"], ["gpu", "--drivers", "1"], ["gpu", "--driver"]])
def test_wrong_usage_is_told(node: Node, wrong: list[str]) -> None:
    script = node.root / "verify.sh"
    script.write_text(node_check())
    done = subprocess.run(["bash", str(script), *wrong], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: verify.sh gpu|head|router" in done.stderr


def test_only_what_is_named_is_checked(node: Node) -> None:
    node.arguments = ["gpu", "--cuda", "13.0"]
    for fault in ("another EFA installer", "no engine", "no shared volume", "another kernel"):
        FAULTS[fault][0](node)
    assert node.verify().returncode == 0
