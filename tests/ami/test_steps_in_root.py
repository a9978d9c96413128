"""The steps in a real root: apt, dpkg, dkms, modinfo and pip are real, what they install is made here.

Not seen here: a GPU, EFA hardware, NVIDIA's and AWS's own packages, systemd, and Image Builder itself.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from toolkit.plan.image import ImagePlan, image_name
from toolkit.plan.node_software import node_software
from toolkit.render.image import render_component

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a Debian root and mounts overlays"),
    # The first test makes the root.
    pytest.mark.timeout(600),
]

SOFTWARE = node_software()
KERNEL = SOFTWARE.kernel
STEPS = [
    "10-hold-kernel",
    "20-remove-driver",
    "30-driver",
    "40-fabric-manager",
    "50-cuda",
    "60-efa",
    "70-rebuild-modules",
    "80-check-dkms",
    "90-engine-env",
]
PACKAGES = "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n'"


def told(output: str, word: str) -> list[str]:
    """The steps whose line begins with this word, in their order."""
    lines = [line.split(maxsplit=3) for line in output.splitlines() if "] " in line]
    return [line[2].strip("[]") for line in lines if len(line) == 4 and line[3].startswith(word)]


def the_error(output: str) -> str:
    [line] = [line for line in output.splitlines() if "ERROR: " in line]
    return line.partition("ERROR: ")[2]


def component(machine: Any) -> str:
    """The component script as rendered, with the digest of our EFA archive in place of the published one."""
    plan = ImagePlan(
        name=image_name(SOFTWARE, "3.14.2"),
        parallelcluster="3.14.2",
        region="ap-south-1",
        parent_image="ami-0133f195033a4baae",
        instance_type="g4dn.4xlarge",
        component_url="s3://pd-scripts/component.sh",
        payload_url="s3://pd-scripts/payload.tar.gz",
        payload_sha256=machine.image.payload_sha256,
        software=SOFTWARE,
    )
    text = render_component(plan)
    assert SOFTWARE.efa_installer_sha256 in text
    return text.replace(SOFTWARE.efa_installer_sha256, machine.image.efa_sha256)


def packages_of(machine: Any) -> dict[str, str]:
    _, output = machine.run(PACKAGES)
    return {line.split()[1]: line.split()[2] for line in output.splitlines() if line[1] == "i"}


def test_a_dry_run_changes_nothing(machine: Any) -> None:
    code, output = machine.run(component(machine), PD_DRY_RUN="1")
    assert code == 0, output
    assert [path for path in machine.changed.rglob("*") if not path.is_dir()] == []
    assert [name for name in STEPS if name not in told(output, "dry run, nothing changed")] == [
        # As things are before the other steps, these have nothing to do.
        "70-rebuild-modules",
        "80-check-dkms",
    ]
    assert "would run: ./efa_installer.sh -y" in output
    assert told(output, "run:") == []


def test_a_run_changes_a_second_does_not_and_upgrades_leave_it(machine: Any) -> None:
    machine.put("opt/pd/engine.new/left-by-a-killed-run", "")
    code, output = machine.run(component(machine))
    assert code == 0, output
    assert told(output, "done:") == [name for name in STEPS if name != "80-check-dkms"]
    as_wanted(machine)
    engine_works_elsewhere(machine)

    before = machine.state()
    code, output = machine.run(component(machine))
    assert (code, told(output, "already:")[1:]) == (0, STEPS), output
    assert told(output, "run:") == []
    assert machine.state() == before

    kernel_and_driver_stay(machine)
    verified(machine)


def as_wanted(machine: Any) -> None:
    packages = packages_of(machine)
    for name in ("nvidia-open-580", "nvidia-dkms-580-open", "libnvidia-compute-580"):
        assert packages[name] == "580.126.16-1ubuntu1", "not the newest, which the repository has too"
    assert packages["nvidia-fabricmanager"] == packages["nvidia-imex"] == "580.126.16-1"
    assert packages["nvidia-container-toolkit"] == "1.17.8-1", "no driver, left alone"
    assert f"linux-modules-extra-{KERNEL}" in packages
    assert "datacenter-gpu-manager-4-cuda13" in packages, "the image had DCGM for CUDA 12"
    assert not {"nvidia-fabricmanager-570", "nvidia-imex-570"} & set(packages)
    _, output = machine.run(
        f"for m in nvidia efa; do modinfo -k {KERNEL} -F version $m; done; dkms status | sort; "
        "readlink -f /usr/local/cuda; cat /var/tmp/efa-arguments /var/tmp/systemctl; nvidia-smi; "
        "ls /usr/bin/nvidia-uninstall"
    )
    lines = output.splitlines()
    assert lines[:2] == ["580.126.16", "3.3.0g"]
    assert lines[2:6] == [
        f"{module}, {KERNEL}, x86_64: installed"
        for module in ("efa-nv-peermem/1.2.3", "efa/3.3.0", "gdrdrv/2.5", "nvidia/580.126.16")
    ]
    assert lines[6:8] == ["/usr/local/cuda-13.0", "-y"]
    assert [line for line in lines if line.startswith(("start", "enable", "restart"))] == []
    assert "disable nvidia-fabricmanager.service" in lines, "there is no NVSwitch here"
    assert lines[8].startswith("stop "), "the old driver's services end before it is removed"
    assert lines[-2] == "580.126.16"
    assert "No such file" in lines[-1], "the old driver's uninstaller is gone"


def engine_works_elsewhere(machine: Any) -> None:
    code, output = machine.run(
        "set -e; cd /; /opt/pd/engine/bin/vllm; mv /opt/pd/engine '/srv/an engine'; "
        "'/srv/an engine/bin/vllm'; '/srv/an engine/bin/python' -m pip list --format freeze; "
        "mv '/srv/an engine' /opt/pd/engine; /opt/pd/toolkit/bin/toolkit"
    )
    lines = output.splitlines()
    assert (code, lines[:2], lines[-1]) == (0, ["/opt/pd/engine", "/srv/an engine"], "/opt/pd/toolkit"), (
        output
    )
    assert {"vllm==0.29.0", "nixl==1.4.1", "pd-connector==0.1.0"} <= {
        line.replace("_", "-") for line in lines
    }


def kernel_and_driver_stay(machine: Any) -> None:
    before = packages_of(machine)
    code, output = machine.run(
        "export DEBIAN_FRONTEND=noninteractive; apt-get update -q && apt-get -y -q dist-upgrade"
    )
    assert code == 0, output
    assert packages_of(machine) == {**before, "nvidia-container-toolkit": "1.18.0-1"}
    # ParallelCluster's build component ends with this; the step takes the hold again.
    machine.run("apt-mark unhold linux-aws linux-base linux-headers-aws linux-image-aws")
    code, output = machine.steps("10")
    assert (code, told(output, "done:")) == (0, ["10-hold-kernel"]), output


def verified(machine: Any) -> None:
    code, output = machine.run(
        "/opt/pd/ami-setup/verify.sh gpu --cuda 13.0 --efa-installer 1.50.0 --efa-module 3.3.0g "
        "--engine-env /opt/pd/engine --toolkit-env /opt/pd/toolkit --mount /proc"
    )
    # The host's own kernel runs here, so modinfo without -k looks for a module that is not there.
    assert "efa module: expected 3.3.0g, found modinfo: ERROR: Module" in output
    assert len(output.splitlines()) == 1, output
    assert code == 1


def test_a_killed_run_goes_on(machine: Any) -> None:
    machine.lay_down()
    machine.put("srv/interrupt", "")
    process = machine.start("set -e; for n in 10 20 30; do bash /opt/pd/ami-setup/steps/$n-*.sh; done")
    deadline = time.monotonic() + 120
    while not (machine.changed / "var/tmp/in-postinst").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    machine.kill(process)
    _, audit = machine.run("dpkg --audit")
    assert "nvidia-dkms-580-open" in audit, "it was killed within the package's own script"
    code, output = machine.steps("10", "20", "30")
    assert code == 0, output
    assert told(output, "already:") == ["10-hold-kernel", "20-remove-driver"]
    assert "run: dpkg --configure -a" in output
    assert told(output, "done:") == ["30-driver"]


def test_a_wrong_checksum_stops_before_the_installer(machine: Any) -> None:
    machine.lay_down(efa_installer_sha256=SOFTWARE.efa_installer_sha256)
    code, output = machine.steps("60")
    assert code == 1
    assert the_error(output) == (
        f"sha256 of file:///srv/efa.tar.gz: expected {SOFTWARE.efa_installer_sha256}, "
        f"found {machine.image.efa_sha256}; nothing was installed; compare with the publisher's checksum"
    )
    assert {name for name in machine.state() if not name.startswith("opt/pd/ami-setup/")} == set()


def test_a_wrong_payload_stops_before_the_first_step(machine: Any) -> None:
    code, output = machine.run(component(machine).replace(machine.image.payload_sha256, "0" * 64))
    assert code == 1
    assert the_error(output).startswith(
        f"sha256 of s3://pd-scripts/payload.tar.gz: expected {'0' * 64}, found "
    )
    assert told(output, "begin:") == []


def test_a_version_that_nobody_offers_is_told_with_what_is_offered(machine: Any) -> None:
    machine.lay_down(nvidia_driver="580.126.99")
    machine.run("apt-get update")
    code, output = machine.steps("30")
    assert code == 1
    assert the_error(output) == (
        "version 580.126.99 of one of: nvidia-open-580 nvidia-driver-580-open nvidia-open: "
        "expected an apt repository that offers it, found nvidia-open-580=580.178.04-1ubuntu1, "
        "nvidia-open-580=580.126.16-1ubuntu1, nvidia-driver-580-open=580.178.04-1ubuntu1, "
        "nvidia-driver-580-open=580.126.16-1ubuntu1; see 'apt-cache madison nvidia-open-580'; "
        "if NVIDIA withdrew the version, set PD_NVIDIA_KEYRING_URL to a mirror that has it"
    )
    assert [name for name in machine.state() if not name.startswith("opt/pd/ami-setup/")] == []


def test_nvidias_repository_is_added_where_apt_does_not_know_it(machine: Any) -> None:
    machine.lay_down()
    machine.put("etc/apt/sources.list", "deb [trusted=yes] file:/srv/base ./\n")
    code, output = machine.steps("10", "20", "30", PD_NVIDIA_KEYRING_URL="file:///srv/none.deb")
    assert code == 1
    assert the_error(output) == (
        "download: expected file:///srv/none.deb, found an error of curl; "
        "check the address and the instance's way out (NAT, proxy)"
    )
    code, output = machine.steps("30", "40", PD_NVIDIA_KEYRING_URL="file:///srv/cuda-keyring.deb")
    assert code == 0, output
    assert packages_of(machine)["nvidia-fabricmanager"] == "580.126.16-1"


def test_an_image_with_another_kernel_is_refused(machine: Any) -> None:
    machine.lay_down(kernel="6.14.0-1020-aws")
    code, output = machine.steps("10")
    assert code == 1
    assert the_error(output) == (
        f"kernel of this image: expected 6.14.0-1020-aws, found linux-image-{KERNEL}; "
        "build on the parent image that versions.yaml names"
    )


def test_an_image_that_would_boot_a_newer_kernel_is_refused(machine: Any) -> None:
    machine.lay_down()
    machine.run("apt-get update && apt-get -y install linux-image-6.14.0-1019-aws")
    code, output = machine.steps("10")
    assert code == 1
    assert the_error(output).startswith(
        "newer kernels, of which one would boot: expected none, found 6.14.0-1019-aws; "
    )


def test_a_failing_installer_is_told_with_its_last_line(machine: Any) -> None:
    machine.lay_down()
    script = r"""
        mkdir -p /tmp/aws-efa-installer && cd /tmp/aws-efa-installer || exit
        printf '#!/bin/sh\necho Error: Failed to install packages.\nexit 1\n' >efa_installer.sh
        chmod 755 efa_installer.sh
        tar -czf /srv/efa.tar.gz -C /tmp aws-efa-installer
        sum=$(sha256sum </srv/efa.tar.gz | cut -d ' ' -f 1)
        sed -i "s/^efa_installer_sha256: .*/efa_installer_sha256: $sum/" /opt/pd/ami-setup/versions.yaml
    """
    assert machine.run(script) == (0, "")
    code, output = machine.steps("60")
    assert code == 1
    assert the_error(output) == (
        "efa_installer.sh: expected exit 0, found exit 1: Error: Failed to install packages.; "
        "read /var/log/pd-efa-installer.log"
    )


def test_a_folder_that_is_not_ours_is_not_replaced(machine: Any) -> None:
    machine.lay_down()
    machine.put("opt/pd/engine/precious", "")
    machine.run("mkdir -p /opt/pd/payload && tar -xzf /srv/payload.tar.gz -C /opt/pd/payload")
    code, output = machine.steps("90")
    assert code == 1
    assert the_error(output).startswith(
        "/opt/pd/engine: expected an environment that this step made, found something"
    )
    assert (machine.changed / "opt/pd/engine/precious").exists()
