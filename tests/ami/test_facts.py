"""The decisions of ami-setup/facts.sh, in bash itself, with outputs in the formats that the tools print."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

SETUP = Path(__file__).parents[2] / "ami-setup"


def ask(call: str, text: str) -> tuple[int, list[str]]:
    script = f"set -euo pipefail; . {shlex.quote(str(SETUP / 'facts.sh'))}; {call}"
    done = subprocess.run(["bash", "-c", script], input=text, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


# `apt-cache madison` with Ubuntu's and NVIDIA's repositories: columns as apt prints them, versions in the
# form of packages.ubuntu.com and of NVIDIA's repository for Ubuntu 24.04.
MADISON = """\
nvidia-driver-580-open | 580.178.04-1ubuntu1 | https://nvidia.example/ubuntu2404/x86_64  Packages
nvidia-driver-580-open | 580.126.16-1ubuntu1 | https://nvidia.example/ubuntu2404/x86_64  Packages
nvidia-driver-580-open | 580.126.16-0ubuntu0.24.04.1 | http://ubuntu.example noble/restricted
nvidia-open | 1:590.44.01-1ubuntu1 | https://nvidia.example/ubuntu2404/x86_64  Packages
nvidia-open | 1:580.126.16-1ubuntu1 | https://nvidia.example/ubuntu2404/x86_64  Packages
"""
CANDIDATES = "nvidia-open-580 nvidia-driver-580-open nvidia-open"


@pytest.mark.parametrize(
    ("version", "picked"),
    [
        ("580.126.16", "nvidia-driver-580-open=580.126.16-1ubuntu1"),
        ("590.44.01", "nvidia-open=1:590.44.01-1ubuntu1"),
        ("580.126.1", None),
        ("580.126", None),
        ("570.172.08", None),
    ],
)
def test_a_package_is_picked_by_the_exact_upstream_version(version: str, picked: str | None) -> None:
    code, lines = ask(f"pd_pick_package {version} {CANDIDATES}", MADISON)
    assert (code, lines) == ((0, [picked]) if picked else (1, []))


def test_nothing_offered_is_nothing_picked() -> None:
    assert ask("pd_pick_package 580.126.16 nvidia-open", "") == (1, [])


# `dkms status` of dkms 3 (Ubuntu 24.04), with the remarks it adds, and of dkms 2 (Ubuntu 22.04).
DKMS_3 = """\
efa-nv-peermem/1.2.3, 6.14.0-1018-aws, x86_64: installed
efa/3.3.0, 6.14.0-1017-aws, x86_64: installed
efa/3.3.0, 6.14.0-1018-aws, x86_64: built
gdrdrv/2.5, 6.14.0-1018-aws, x86_64: installed (Original modules exist)
nvidia/570.172.08, 6.14.0-1018-aws, x86_64: installed (WARNING! Diff between built and installed module!)
nvidia/580.126.16, 6.14.0-1018-aws, x86_64: installed
lustre-client-modules/2.15.6: added
zfs/2.2.2, 6.14.0-1017-aws, x86_64: installed
"""
DKMS_2 = "nvidia, 580.126.16, 6.14.0-1018-aws, x86_64: installed\nefa, 3.3.0: added\n"


@pytest.mark.parametrize(
    ("text", "module", "state"),
    [
        (DKMS_3, "efa-nv-peermem", ["1.2.3 installed"]),
        (DKMS_3, "efa", ["3.3.0 built"]),
        (DKMS_3, "gdrdrv", ["2.5 installed"]),
        (
            DKMS_3,
            "nvidia",
            [
                "570.172.08 installed (WARNING! Diff between built and installed module!)",
                "580.126.16 installed",
            ],
        ),
        (DKMS_3, "lustre-client-modules", ["2.15.6 added"]),
        (DKMS_3, "zfs", ["2.2.2 not built"]),
        (DKMS_3, "nvidia-fs", ["absent"]),
        (DKMS_2, "nvidia", ["580.126.16 installed"]),
        (DKMS_2, "efa", ["3.3.0 added"]),
        ("", "nvidia", ["absent"]),
    ],
)
def test_what_dkms_says_of_a_module(text: str, module: str, state: list[str]) -> None:
    assert ask(f"pd_dkms_state {module} 6.14.0-1018-aws", text) == (0, state)


# `dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}'`
PACKAGES = """\
ii  nvidia-driver-570-open 570.172.08-0ubuntu1
iF  nvidia-dkms-570-open 570.172.08-0ubuntu1
ii  libnvidia-compute-570 1:570.172.08-0ubuntu1
hi  nvidia-fabricmanager-570 570.172.08-1
ii  nvidia-imex 580.126.16-1
rc  nvidia-utils-550 550.54.15-1
un  nvidia-persistenced 
ii  nvidia-container-toolkit 1.17.8-1
ii  libnvidia-container1 1.17.8-1
ii  nvidia-cuda-toolkit 12.0.140~12.0.1-4build4
ii  linux-base 4.5ubuntu9
ii  linux-aws 6.14.0.1018.25~24.04.1
ii  linux-image-aws 6.14.0.1018.25~24.04.1
ii  linux-headers-aws 6.14.0.1018.25~24.04.1
ii  linux-image-6.14.0-1018-aws 6.14.0-1018.18~24.04.1
ii  linux-modules-6.14.0-1018-aws 6.14.0-1018.18~24.04.1
ii  linux-image-unsigned-6.14.0-1019-aws 6.14.0-1019.19~24.04.1
ii  linux-image-6.8.0-1040-aws 6.8.0-1040.42
rc  linux-image-6.17.0-1001-aws 6.17.0-1001.1
ii  linux-firmware 20240318
ii  linux-libc-dev 6.8.0-90.91
"""  # noqa: W291


def test_the_packages_of_another_driver() -> None:
    others = [
        "nvidia-driver-570-open",
        "nvidia-dkms-570-open",
        "libnvidia-compute-570",
        "nvidia-fabricmanager-570",
    ]
    assert ask("pd_other_driver_packages 580.126.16", PACKAGES) == (0, others)
    assert ask("pd_other_driver_packages 570.172.08", PACKAGES) == (0, ["nvidia-imex"])


def test_the_packages_that_decide_the_kernel() -> None:
    assert ask("pd_kernel_packages 6.14.0-1018-aws", PACKAGES) == (
        0,
        [
            "linux-aws",
            "linux-base",
            "linux-headers-aws",
            "linux-image-6.14.0-1018-aws",
            "linux-image-aws",
            "linux-modules-6.14.0-1018-aws",
        ],
    )


def test_a_newer_kernel_is_found_an_older_or_removed_one_is_not() -> None:
    assert ask("pd_newer_kernels 6.14.0-1018-aws", PACKAGES) == (0, ["6.14.0-1019-aws"])
    assert ask("pd_newer_kernels 6.14.0-1019-aws", PACKAGES) == (0, [])


def test_the_efa_installers_record() -> None:
    # As write_package_file of efa_installer.sh writes it.
    record = (
        "# EFA installer version: 1.43.2\n# Debug packages installed: no\n# Packages installed:\nefa_2.17.2\n"
    )
    assert ask("pd_efa_installer_version", record) == (0, ["1.43.2"])
    assert ask("pd_efa_installer_version", "") == (0, [])


def test_libfabrics_version() -> None:
    text = "/opt/amazon/efa/bin/fi_info: 2.6.0amzn1.0\nlibfabric: 2.6.0amzn1.0\nlibfabric api: 2.6\n"
    assert ask("pd_libfabric_version", text) == (0, ["2.6.0amzn1.0"])


@pytest.mark.parametrize("kind", ["Open Kernel Module for x86_64", "x86_64 Kernel Module"])
def test_the_loaded_drivers_version(kind: str) -> None:
    """The first line of /proc/driver/nvidia/version, for open and for closed modules."""
    text = f"NVRM version: NVIDIA UNIX {kind}  580.126.16  Release Build  (dvs@U22-I3)\nGCC version:  13.3\n"
    assert ask("pd_loaded_driver", text) == (0, ["580.126.16"])


def test_the_shell_reads_every_value_of_the_versions_file_as_yaml_does() -> None:
    text = (SETUP / "versions.yaml").read_text()
    document = yaml.safe_load(text)
    values = {key: value for key, value in document.items() if key != "engine"}
    values |= {f"engine.{key}": value for key, value in document["engine"].items()}
    for key, value in values.items():
        assert ask(f"pd_yaml_value {key}", text) == (0, [value])
    assert ask("pd_yaml_value vllm", text) == (1, [])
    assert ask("pd_yaml_value no_such_key", text) == (1, [])


@pytest.mark.parametrize("path", sorted(SETUP.rglob("*.sh")), ids=lambda path: path.name)
def test_shell_is_sound(path: Path) -> None:
    for checker in (["bash", "-n"], ["shellcheck", "-x"]):
        done = subprocess.run([*checker, str(path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
