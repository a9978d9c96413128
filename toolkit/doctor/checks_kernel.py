"""Kernel and CUDA of a GPU node: the kernel that was tested, held, with every module built for it."""

from __future__ import annotations

from toolkit.doctor.check import Check
from toolkit.doctor.checks_driver import IMAGE, UPGRADE_TEST, has_gpus
from toolkit.doctor.finding import Unread, Verdict, error, ok, warning
from toolkit.doctor.node_facts import NodeFacts
from toolkit.doctor.wanted import Wanted

KERNEL_CHANGED = "https://github.com/aws/aws-parallelcluster/issues/2095"
NEW_KERNEL = "https://github.com/aws/aws-parallelcluster/issues/6960"
UPGRADED_ALONE = "https://github.com/aws/aws-parallelcluster/issues/3034"
DKMS = "https://github.com/aws/aws-parallelcluster/issues/6861"
DRM = "https://github.com/aws/aws-parallelcluster-cookbook/pull/3031"


def kernel_version(facts: NodeFacts, wanted: Wanted) -> Verdict:
    expected = wanted.versions.kernel
    if facts.kernel == expected:
        return ok(f"kernel {facts.kernel}")
    return warning(
        f"kernel {facts.kernel} runs, {expected} is what driver, EFA and Lustre were tested with",
        f"uname -r: {facts.kernel}",
        cause="a kernel update came in, or the node was started from another image",
        next_step=f"boot {expected} again and hold it, or {IMAGE}",
        source=NEW_KERNEL,
    )


def kernel_held(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    held = [name for name in facts.held if name.startswith("linux-")]
    image = f"linux-image-{facts.kernel}"
    # linux-aws pulls every new image, so it must be held as well wherever it is installed.
    if image in held or "linux-aws" in held or "linux-image-aws" in held:
        return ok("the kernel is held", *held)
    return warning(
        "the running kernel is not held",
        *(held or ["apt-mark showhold lists no linux- package"]),
        cause="ParallelCluster lets the hold go at the end of an image build; the next upgrade brings a "
        "kernel that driver, EFA and Lustre have no modules for",
        next_step=f"`sudo apt-mark hold {image} linux-aws linux-image-aws linux-headers-aws`",
    )


def unattended_upgrades(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    state = facts.service("unattended_upgrades")
    setting = facts.probe.lines("upgrade_setting")
    evidence = (*(f"{key}={value}" for key, value in state.items()), *setting)
    if state.get("LoadState") != "loaded" or state.get("UnitFileState") in ("disabled", "masked"):
        return ok("unattended-upgrades is off", *evidence)
    if any(line.rstrip(";").endswith('"0"') for line in setting):
        return ok("unattended-upgrades is switched off in apt's settings", *evidence)
    return warning(
        "unattended-upgrades is on",
        *evidence,
        cause="it has raised fabric manager, driver and kernel under running clusters",
        next_step="`sudo systemctl disable --now unattended-upgrades`, or hold what must stay",
    )


def dkms(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    needed = ("nvidia", "gdrdrv", "efa", "efa-nv-peermem")
    built = {each.module: each for each in facts.dkms if each.kernel == facts.kernel}
    lines = tuple(facts.probe.lines("dkms"))
    missing = [name for name in needed if name not in built or not built[name].state.startswith("installed")]
    if not missing:
        return ok(f"{', '.join(needed)} are built for {facts.kernel}", *lines)
    return error(
        f"not built for the running kernel {facts.kernel}: {', '.join(missing)}",
        *(lines or ("dkms status lists nothing",)),
        cause="the build failed, or the module was installed for another kernel; efa-nv-peermem before 1.2.1 "
        "breaks with DKMS 3.1.4 and later",
        next_step=f"`sudo dkms autoinstall -k {facts.kernel}`; /var/lib/dkms/MODULE/VERSION/build/make.log",
    )


def drm_module(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    lines = [line for line in facts.kernel_log if "nvidia-drm" in line and "failed" in line.lower()]
    if not lines:
        return ok("nvidia-drm has not failed")
    return warning(
        "nvidia-drm could not be loaded",
        *lines[-3:],
        cause="Ubuntu 24.04 does not load drm_client_lib before it",
        next_step="install the driver with --no-drm, or `modprobe drm_client_lib` first; compute needs none",
    )


def cuda(facts: NodeFacts, wanted: Wanted) -> Verdict:
    try:
        link = facts.probe.text("cuda_link")
    except Unread:
        return error(
            "/usr/local/cuda leads nowhere",
            *(facts.probe.section("cuda_link").lines or ("readlink -e /usr/local/cuda prints nothing",)),
            cause="the CUDA toolkit is not installed, or its link was left behind",
            next_step=f"`sudo ln -sfn /usr/local/cuda-{wanted.versions.cuda or 'VERSION'} /usr/local/cuda`",
        )
    found, expected = facts.cuda_version, wanted.versions.cuda
    evidence = (f"/usr/local/cuda -> {link}", f"its version: {found}")
    if not expected or found == expected or found.startswith(f"{expected}."):
        return ok(f"CUDA {found}", *evidence)
    return warning(
        f"/usr/local/cuda is CUDA {found}, {expected} is wanted",
        *evidence,
        cause="the link still leads to the image's older toolkit",
        next_step=f"`sudo ln -sfn /usr/local/cuda-{expected} /usr/local/cuda`",
    )


def _kernel_known(facts: NodeFacts, wanted: Wanted) -> bool:
    return has_gpus(facts, wanted) and bool(wanted.versions.kernel)


CHECKS: tuple[Check[NodeFacts], ...] = (
    Check(
        "kernel.version", "`uname -r` against the kernel wanted", NEW_KERNEL, kernel_version, _kernel_known
    ),
    Check("kernel.held", "`apt-mark showhold`", KERNEL_CHANGED, kernel_held, has_gpus),
    Check(
        "kernel.unattended_upgrades",
        "`systemctl show unattended-upgrades`, apt's settings",
        UPGRADED_ALONE,
        unattended_upgrades,
        has_gpus,
    ),
    Check(
        "kernel.dkms",
        "`dkms status`: nvidia, gdrdrv, efa, efa-nv-peermem for the running kernel",
        DKMS,
        dkms,
        has_gpus,
    ),
    Check("kernel.nvidia_drm", "nvidia-drm in the kernel's log", DRM, drm_module, has_gpus),
    Check("cuda.toolkit", "/usr/local/cuda and its version.json", UPGRADE_TEST, cuda, has_gpus),
)
