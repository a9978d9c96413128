"""EFA of a node: software versions, devices, their spread over NUMA nodes, the libfabric provider."""

from __future__ import annotations

from collections import Counter

from toolkit.doctor.check import Check
from toolkit.doctor.checks_driver import IMAGE
from toolkit.doctor.finding import Unread, Verdict, error, ok, warning
from toolkit.doctor.node_facts import NodeFacts
from toolkit.doctor.wanted import Wanted

EFA_GUIDE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html"
OLD_EFA = "https://github.com/aws/aws-parallelcluster/issues/6015"
PUBLISHED = "the published p5en environment: 16 devices, 8 on each NUMA node"
INSTALL = "install the EFA software again (`sudo ./efa_installer.sh -y`) and reboot"


def has_efa(facts: NodeFacts, wanted: Wanted) -> bool:
    if wanted.efa_devices is not None:
        return wanted.efa_devices > 0
    try:
        return bool(facts.efa_hardware)
    except Unread:
        return True


def installer(facts: NodeFacts, wanted: Wanted) -> Verdict:
    return _tested("EFA installer", facts.efa_installer, wanted.versions.efa_installer)


def libfabric(facts: NodeFacts, wanted: Wanted) -> Verdict:
    return _tested("libfabric", facts.libfabric, wanted.versions.libfabric)


def rdma_core(facts: NodeFacts, wanted: Wanted) -> Verdict:
    package = facts.package("rdma-core")
    if package is None:
        return error(
            "rdma-core is not installed",
            "dpkg knows no package rdma-core",
            cause="the EFA installer was not run, or its packages were removed",
            next_step=INSTALL,
        )
    # dpkg has a revision behind the version: 64.0amzn0-1.
    return _tested("rdma-core", package.version.split("-")[0], wanted.versions.rdma_core)


def _tested(what: str, found: str, expected: str) -> Verdict:
    if not expected or found == expected:
        return ok(f"{what} {found}")
    return warning(
        f"{what} {found}, {expected} is what was tested",
        f"found: {found}",
        cause="the node was started from another image, or EFA's software was changed on it",
        next_step=IMAGE,
    )


def module(facts: NodeFacts, wanted: Wanted) -> Verdict:
    try:
        loaded = facts.probe.text("efa_module_loaded")
    except Unread:
        return error(
            "the kernel module efa is not loaded",
            *facts.probe.section("efa_module_loaded").lines,
            cause="it was not built for the running kernel",
            next_step="`dkms status`, `sudo modprobe efa`; else " + INSTALL,
        )
    installed = facts.probe.text("efa_module_installed")
    if installed != loaded:
        return error(
            f"the efa module loaded is {loaded}, the one on disk {installed}",
            f"/sys/module/efa/version: {loaded}",
            f"modinfo: {installed}",
            cause="EFA's software was upgraded and the node not rebooted",
            next_step="drain the node and reboot it",
        )
    return _tested("kernel module efa", loaded, wanted.versions.efa_module)


def devices(facts: NodeFacts, wanted: Wanted) -> Verdict:
    hardware = len(facts.efa_hardware)
    expected = wanted.efa_devices if wanted.efa_devices is not None else hardware
    found = facts.efa_devices
    lines = tuple(f"{each.name} numa={each.numa_node} {each.state}" for each in found)
    down = [each.name for each in found if "ACTIVE" not in each.state]
    if len(found) == expected and not down:
        return ok(f"{expected} EFA devices", *lines)
    if len(found) == expected:
        return error(
            f"{len(down)} EFA devices are not active: {', '.join(down)}",
            *lines,
            cause="the device lost its link",
            next_step="reboot the node, then have it replaced",
        )
    return error(
        f"{len(found)} EFA devices, {expected} are expected",
        *(lines or ("/sys/class/infiniband holds no EFA device",)),
        f"on the PCI bus: {hardware}",
        cause="the module does not run on every adapter"
        if hardware == expected
        else "the instance was launched without all its EFA interfaces",
        next_step=INSTALL
        if hardware == expected
        else "check the queue's Efa section and the launch template: one EFA interface on every network card",
    )


def numa(facts: NodeFacts, wanted: Wanted) -> Verdict:
    nodes = wanted.numa_nodes or 1
    spread = Counter(each.numa_node for each in facts.efa_devices)
    evidence = tuple(f"NUMA node {node}: {count}" for node, count in sorted(spread.items(), key=str))
    if len(spread) == nodes and len(set(spread.values())) == 1 and None not in spread:
        return ok(f"EFA devices evenly on {nodes} NUMA nodes", *evidence)
    return warning(
        f"EFA devices are not spread evenly over {nodes} NUMA nodes",
        *(evidence or ("no EFA device",)),
        cause="devices are missing, or the instance shows another topology than its type has",
        next_step="compare with `lstopo`; NIXL picks rails by PCIe switch, and far ones are slow",
    )


def provider(facts: NodeFacts, _wanted: Wanted) -> Verdict:
    section = facts.probe.section("efa_provider")
    lines = [line.strip() for line in section.lines if line.strip()]
    if section.status == 127:
        raise Unread(section.why)
    if any(line == "provider: efa" for line in lines):
        domains = [line for line in lines if line.startswith("domain:")]
        return ok(f"libfabric has the provider efa, {len(domains)} domains", *domains)
    return error(
        "libfabric has no provider efa: transfers would fall back to TCP without a word",
        *(lines[-5:] or [f"fi_info -p efa -t FI_EP_RDM printed nothing, exit {section.status}"]),
        cause="EFA's user software is missing or another libfabric comes first, the module is not loaded, or "
        "the instance has no EFA interface; figures measured over TCP mean nothing",
        next_step="look at efa.devices and efa.module first, then " + INSTALL,
    )


CHECKS: tuple[Check[NodeFacts], ...] = (
    Check("efa.devices", "EFA devices in /sys/class/infiniband, and on PCI", EFA_GUIDE, devices, has_efa),
    Check(
        "efa.numa",
        "NUMA node of every EFA device",
        PUBLISHED,
        numa,
        lambda facts, wanted: has_efa(facts, wanted) and wanted.numa_nodes is not None,
    ),
    Check("efa.module", "/sys/module/efa/version and `modinfo efa`", OLD_EFA, module, has_efa),
    Check("efa.provider", "`fi_info -p efa -t FI_EP_RDM`", EFA_GUIDE, provider, has_efa),
    Check("efa.installer", "/opt/amazon/efa_installed_packages", OLD_EFA, installer, has_efa),
    Check("efa.libfabric", "`fi_info --version`", EFA_GUIDE, libfabric, has_efa),
    Check("efa.rdma_core", "package rdma-core", EFA_GUIDE, rdma_core, has_efa),
)
