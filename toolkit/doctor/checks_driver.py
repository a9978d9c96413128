"""The NVIDIA driver of a GPU node: one version everywhere, open module, fabric manager, fit GPUs."""

from __future__ import annotations

from toolkit.doctor.check import Check
from toolkit.doctor.finding import Unread, Verdict, error, ok, warning
from toolkit.doctor.node_facts import NodeFacts
from toolkit.doctor.wanted import Wanted

IMAGE = "make the node image anew (`toolkit image build`) and replace the node"
UPDATED_UNDER_MODULE = "https://github.com/aws/aws-parallelcluster/issues/4127"
MANAGER_STOPS = "https://github.com/aws/aws-parallelcluster/issues/3034"
ERROR_802 = "https://github.com/dstackai/dstack/issues/2348"
OPEN_MODULE = "https://github.com/aws/aws-parallelcluster/issues/6015"
UPGRADE_TEST = "https://github.com/aws/aws-parallelcluster (integration test test_upgrade_nvidia_software)"
XID_CATALOG = "https://docs.nvidia.com/deploy/xid-errors/"


def has_gpus(facts: NodeFacts, wanted: Wanted) -> bool:
    """Where no number is asked for, what is on the PCI bus decides; unread counts as yes, to be told."""
    if wanted.gpus is not None:
        return wanted.gpus > 0
    try:
        return bool(facts.nvidia_hardware)
    except Unread:
        return True


def has_nvswitches(facts: NodeFacts, wanted: Wanted) -> bool:
    if not has_gpus(facts, wanted):
        return False
    try:
        return bool(facts.nvswitches)
    except Unread:
        return True


def gpu_count(facts: NodeFacts, wanted: Wanted) -> Verdict:
    found = len(facts.gpus)
    lines = tuple(f"GPU {gpu.index}: {gpu.name}, {gpu.bus}" for gpu in facts.gpus)
    expected = wanted.gpus if wanted.gpus is not None else len(facts.nvidia_hardware)
    if found == expected:
        return ok(f"{found} GPUs", *lines)
    return error(
        f"nvidia-smi lists {found} GPUs, {expected} are expected",
        *(lines or ("nvidia-smi lists none",)),
        cause="a GPU fell off the bus or failed to start, or the instance is of another type",
        next_step="look for Xid lines in `journalctl -k`; reboot the node, then have it replaced: "
        "`sudo scontrol update nodename=NODE state=down reason=gpu`",
        source=XID_CATALOG,
    )


def versions(facts: NodeFacts, wanted: Wanted) -> Verdict:
    found = {
        "nvidia-smi": facts.smi_driver,
        "module loaded": facts.loaded_driver,
        "module on disk": facts.installed_driver,
    }
    evidence = tuple(f"{what}: {version}" for what, version in found.items())
    if len(set(found.values())) > 1:
        return error(
            "the driver's parts are of different versions",
            *evidence,
            cause="packages were changed under the loaded module, by hand or by unattended-upgrades",
            next_step="drain the node and reboot it, so that one version is loaded; then hold the driver's "
            "packages. If they still differ, " + IMAGE,
        )
    expected = wanted.versions.nvidia_driver
    if expected and facts.smi_driver != expected:
        return warning(
            f"driver {facts.smi_driver}, {expected} is what was tested",
            *evidence,
            cause="the node was started from another image",
            next_step=IMAGE,
        )
    return ok(f"driver {facts.smi_driver} everywhere", *evidence)


def fabric_manager_version(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    package = facts.package(r"nvidia-fabricmanager(-\d+)?")
    if package is None:
        return error(
            "the fabric manager is not installed",
            *_packages_of(facts, "nvidia-fabricmanager"),
            cause="NVSwitches are on this node, and CUDA can't start without it (error 802)",
            next_step=f"install nvidia-fabricmanager {facts.loaded_driver} and hold it, or " + IMAGE,
        )
    return _equals_driver("fabric manager", f"{package.name} {package.version}", package.version, facts)


def imex_version(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    package = facts.package(r"nvidia-imex(-\d+)?")
    if package is None:
        return ok("IMEX is not installed, and is not needed on this kind of node")
    return _equals_driver("IMEX", f"{package.name} {package.version}", package.version, facts)


def _equals_driver(what: str, evidence: str, version: str, facts: NodeFacts) -> Verdict:
    driver = facts.loaded_driver
    if version.split("-")[0] == driver:
        return ok(f"{what} {driver}, as the driver", evidence)
    return error(
        f"{what} is of another version than the driver",
        evidence,
        f"driver loaded: {driver}",
        cause="it was upgraded alone, or left behind when the driver was upgraded",
        next_step=f"install version {driver} of it, restart it and hold it: `sudo apt-mark hold`, or "
        + IMAGE,
    )


def _packages_of(facts: NodeFacts, prefix: str) -> tuple[str, ...]:
    named = [f"{p.status} {p.name} {p.version}" for p in facts.packages if p.name.startswith(prefix)]
    return tuple(named) or (f"dpkg knows no package {prefix}*",)


def open_module(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    line = facts.probe.first("driver_loaded").strip()
    if "Open Kernel Module" in line:
        return ok("the open kernel module is loaded", line)
    return error(
        "the closed kernel module is loaded",
        line,
        cause="with kernels since 2024 the closed module gives EFA no access to GPU memory",
        next_step="install the driver with its open kernel modules, or " + IMAGE,
    )


def api_mismatch(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    lines = [line for line in facts.kernel_log if "API mismatch" in line]
    if not lines:
        return ok("no API mismatch in the kernel's log")
    return error(
        "the kernel's log tells of an API mismatch between driver libraries and module",
        *lines[-3:],
        cause="the driver's packages were updated while the old module stayed loaded",
        next_step="drain the node and reboot it; hold the driver's packages",
    )


def xid(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    lines = [line for line in facts.kernel_log if "NVRM: Xid" in line]
    if not lines:
        return ok("no Xid in the kernel's log")
    return warning(
        f"{len(lines)} GPU errors (Xid) in the kernel's log since boot",
        *lines[-5:],
        cause="the number behind the GPU's address says which; 48, 63, 64, 74, 79, 94 and 95 are hardware, "
        "13, 31 and 43 are mostly the program's",
        next_step="look the number up; for hardware have the node replaced",
    )


def fabric_manager_service(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    state = facts.service("fabricmanager")
    evidence = tuple(f"{key}={value}" for key, value in state.items())
    if state.get("ActiveState") == "active":
        return ok("the fabric manager runs", *evidence)
    return error(
        "the fabric manager does not run",
        *evidence,
        cause="it ended or was never started; without it CUDA gives error 802 on a node with NVSwitches",
        next_step="`sudo systemctl status nvidia-fabricmanager` says why; its version must be the driver's",
    )


def gpu_fabric(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    lines = facts.probe.text("gpu_fabric").splitlines()
    states = [[part.strip() for part in line.split(",")] for line in lines]
    unfit = [line for line, state in zip(lines, states, strict=True) if state[1:] != ["Completed", "Success"]]
    if not unfit:
        return ok(f"all {len(lines)} GPUs have joined the NVLink fabric", *lines)
    return error(
        f"{len(unfit)} of {len(lines)} GPUs have not joined the NVLink fabric",
        *unfit,
        cause="the fabric manager is still at work, failed, or is of another version than the driver",
        next_step="wait a minute after boot; then `sudo journalctl -u nvidia-fabricmanager`, and reboot",
    )


def leftover_processes(facts: NodeFacts, wanted: Wanted) -> Verdict:
    lines = [line for line in facts.probe.lines("gpu_processes") if line.strip()]
    if not lines or wanted.own_jobs:
        return ok(f"{len(lines)} processes on the GPUs", *lines)
    return warning(
        f"{len(lines)} processes hold GPU memory though no job of this deployment runs here",
        *lines,
        cause="another user's job, or an engine that outlived its job",
        next_step="`squeue -w NODE`; if there is no job, end the processes by their ids",
    )


CHECKS: tuple[Check[NodeFacts], ...] = (
    Check("driver.gpus", "`nvidia-smi`: GPUs there against GPUs expected", XID_CATALOG, gpu_count, has_gpus),
    Check(
        "driver.versions",
        "versions by `nvidia-smi`, /proc/driver/nvidia/version, `modinfo nvidia`, and the one wanted",
        UPDATED_UNDER_MODULE,
        versions,
        has_gpus,
    ),
    Check(
        "driver.fabric_manager_version",
        "package nvidia-fabricmanager against the driver",
        MANAGER_STOPS,
        fabric_manager_version,
        has_nvswitches,
    ),
    Check(
        "driver.imex_version", "package nvidia-imex against the driver", UPGRADE_TEST, imex_version, has_gpus
    ),
    Check(
        "driver.open_module",
        "/proc/driver/nvidia/version: open or closed",
        OPEN_MODULE,
        open_module,
        has_gpus,
    ),
    Check(
        "driver.api_mismatch",
        "`API mismatch` in the kernel's log",
        UPDATED_UNDER_MODULE,
        api_mismatch,
        has_gpus,
    ),
    Check("driver.xid", "`NVRM: Xid` in the kernel's log", XID_CATALOG, xid, has_gpus),
    Check(
        "driver.fabric_manager_service",
        "`systemctl show nvidia-fabricmanager`, where NVSwitches are",
        ERROR_802,
        fabric_manager_service,
        has_nvswitches,
    ),
    Check(
        "driver.gpu_fabric",
        "`nvidia-smi --query-gpu=fabric.state`: Completed on every GPU",
        "https://github.com/NVIDIA/NVSentinel/issues/883",
        gpu_fabric,
        has_nvswitches,
    ),
    Check(
        "driver.leftover_processes",
        "processes on the GPUs while none of our jobs runs",
        "https://github.com/sgl-project/sglang/issues/23627",
        leftover_processes,
        has_gpus,
    ),
)
