"""Every check of a node: a healthy node is ok in all, one thing made wrong is found by its check alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from toolkit.doctor.finding import Finding, Severity
from toolkit.doctor.node_facts import NodeFacts, node_facts
from toolkit.doctor.probe import Probe, Section
from toolkit.doctor.registry import NODE_CHECKS, check_node
from toolkit.doctor.wanted import Wanted

Change = Callable[[NodeFacts], NodeFacts]
NEW_KERNEL = "6.14.0-1020-aws"


def with_section(facts: NodeFacts, name: str, text: str, status: int = 0) -> NodeFacts:
    """The node with one reading of the probe replaced."""
    section = Section(name, tuple(text.splitlines()), status)
    return NodeFacts(facts.node, Probe({**facts.probe.sections, name: section}))


def edited(facts: NodeFacts, name: str, old: str, new: str) -> NodeFacts:
    """The node with a text of one reading replaced wherever it stands."""
    lines = "\n".join(facts.probe.section(name).lines)
    assert old in lines, f"{old!r} is not in section {name}"
    return with_section(facts, name, lines.replace(old, new))


def _section(name: str, text: str, status: int = 0) -> Change:
    return lambda facts: with_section(facts, name, text, status)


def _edit(name: str, old: str, new: str) -> Change:
    return lambda facts: edited(facts, name, old, new)


def _without_line(name: str, words: str) -> Change:
    def change(facts: NodeFacts) -> NodeFacts:
        lines = facts.probe.section(name).lines
        kept = [line for line in lines if words not in line]
        assert len(kept) < len(lines)
        return with_section(facts, name, "\n".join(kept))

    return change


def _chain(*changes: Change) -> Change:
    def change(facts: NodeFacts) -> NodeFacts:
        for each in changes:
            facts = each(facts)
        return facts

    return change


FOLDER = "exists {}\nwritable {}\nmount {}\nFilesystem 1024-blocks Used Available Capacity Mounted on\n{}"
ON_FSX = "10.0.1.20@tcp:/abcdefgh 4686012416 262144000 4423868416 6% /fsx"
LUSTRE = "/fsx lustre 10.0.1.20@tcp:/abcdefgh"
# aws/aws-parallelcluster#4127
MISMATCH = (
    "kernel: NVRM: API mismatch: the client has the version 580.126.16, but this kernel module has 570.172.08"
)
XID = "kernel: NVRM: Xid (PCI:0000:71:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
DRM = "kernel: nvidia-drm: kernel module failed to load"

# check, what is made wrong, severity, words of symptom and evidence
CASES: list[tuple[str, Change, Severity, str]] = [
    ("driver.gpus", _without_line("gpus", "7, NVIDIA"), Severity.ERROR, "7 GPUs, 8 are expected"),
    ("driver.versions", _edit("driver_installed", "580.126.16", "580.126.20"), Severity.ERROR, "580.126.20"),
    (
        "driver.versions",
        _chain(
            _edit("gpus", "580.126.16", "570.172.08"),
            _edit("driver_loaded", "580.126.16", "570.172.08"),
            _edit("driver_installed", "580.126.16", "570.172.08"),
            _edit("packages", "580.126.16", "570.172.08"),
        ),
        Severity.WARNING,
        "580.126.16 is what was tested",
    ),
    (
        "driver.fabric_manager_version",
        _edit("packages", "nvidia-fabricmanager 580.126.16-1", "nvidia-fabricmanager-570 570.172.08-1"),
        Severity.ERROR,
        "nvidia-fabricmanager-570 570.172.08-1",
    ),
    (
        "driver.fabric_manager_version",
        _without_line("packages", "fabricmanager"),
        Severity.ERROR,
        "not installed",
    ),
    (
        "driver.imex_version",
        _edit("packages", "nvidia-imex 580.126.16-1", "nvidia-imex-570 570.172.08-1"),
        Severity.ERROR,
        "nvidia-imex-570",
    ),
    (
        "driver.open_module",
        _edit("driver_loaded", "NVIDIA UNIX Open Kernel Module", "NVIDIA UNIX x86_64 Kernel Module"),
        Severity.ERROR,
        "closed kernel module",
    ),
    ("driver.api_mismatch", _section("kernel_log", MISMATCH), Severity.ERROR, "570.172.08"),
    ("driver.xid", _section("kernel_log", XID), Severity.WARNING, "fallen off the bus"),
    (
        "driver.fabric_manager_service",
        _edit("fabricmanager", "ActiveState=active", "ActiveState=failed"),
        Severity.ERROR,
        "ActiveState=failed",
    ),
    (
        "driver.gpu_fabric",
        _edit("gpu_fabric", "3, Completed, Success", "3, In Progress, N/A"),
        Severity.ERROR,
        "3, In Progress",
    ),
    (
        "driver.leftover_processes",
        _section("gpu_processes", "4711, python3, 131072 MiB"),
        Severity.WARNING,
        "4711, python3",
    ),
    (
        "kernel.version",
        _chain(
            _section("kernel", NEW_KERNEL),
            _edit("dkms", "6.14.0-1018-aws", NEW_KERNEL),
        ),
        Severity.WARNING,
        NEW_KERNEL,
    ),
    ("kernel.held", _section("held", "nvidia-imex"), Severity.WARNING, "no linux- package"),
    (
        "kernel.unattended_upgrades",
        _chain(
            _edit("unattended_upgrades", "UnitFileState=disabled", "UnitFileState=enabled"),
            _section("upgrade_setting", 'APT::Periodic::Unattended-Upgrade "1";'),
        ),
        Severity.WARNING,
        "UnitFileState=enabled",
    ),
    (
        "kernel.dkms",
        _edit("dkms", "peermem/1.2.2, 6.14.0-1018-aws, x86_64: installed", "peermem/1.2.2: added"),
        Severity.ERROR,
        "efa-nv-peermem",
    ),
    ("kernel.nvidia_drm", _section("kernel_log", DRM), Severity.WARNING, DRM),
    (
        "cuda.toolkit",
        _chain(
            _section("cuda_link", "/usr/local/cuda-12.8"),
            _edit("cuda_version", "13.0.2", "12.8.1"),
        ),
        Severity.WARNING,
        "CUDA 12.8.1, 13.0 is wanted",
    ),
    ("cuda.toolkit", _section("cuda_link", "", 1), Severity.ERROR, "leads nowhere"),
    (
        "efa.devices",
        _edit("rdma_devices", "numa=0 state=4: ACTIVE", "numa=0 state=1: DOWN"),
        Severity.ERROR,
        "not active",
    ),
    (
        "efa.devices",
        _chain(
            _without_line("rdma_devices", "rdmap110s0"),
            _without_line("rdma_devices", "rdmap190s0"),
            _without_line("pci", "0000:6e:00.0"),
        ),
        Severity.ERROR,
        "launched without all its EFA interfaces",
    ),
    (
        "efa.numa",
        _edit("rdma_devices", "rdmap110s0 driver=efa numa=0", "rdmap110s0 driver=efa numa=1"),
        Severity.WARNING,
        "NUMA node 0: 7",
    ),
    ("efa.module", _edit("efa_module_loaded", "3.3.0g", "2.17.2g"), Severity.ERROR, "2.17.2g"),
    (
        "efa.module",
        _section("efa_module_loaded", "cat: /sys/module/efa/version: No such file or directory", 1),
        Severity.ERROR,
        "not loaded",
    ),
    (
        "efa.provider",
        _section("efa_provider", "fi_getinfo: -61 (No data available)", 61),
        Severity.ERROR,
        "fi_getinfo: -61",
    ),
    (
        "efa.installer",
        _edit("efa_packages", "version: 1.50.0", "version: 1.43.3"),
        Severity.WARNING,
        "1.43.3",
    ),
    ("efa.libfabric", _edit("libfabric", "2.6.0amzn1.0", "2.1.0amzn3.0"), Severity.WARNING, "2.1.0amzn3.0"),
    ("efa.rdma_core", _edit("packages", "64.0amzn0-1", "58.amzn0-1"), Severity.WARNING, "58.amzn0"),
    ("efa.rdma_core", _without_line("packages", "rdma-core"), Severity.ERROR, "not installed"),
    ("system.time", _edit("chrony", "Normal", "Not synchronised"), Severity.WARNING, "Not synchronised"),
    (
        "system.time",
        _chain(
            _section("chrony", "506 Cannot talk to daemon", 1), _section("timedatectl", "NTPSynchronized=no")
        ),
        Severity.WARNING,
        "NTPSynchronized=no",
    ),
    ("system.memlock", _edit("ulimits", "memlock unlimited", "memlock 8192"), Severity.ERROR, "8192 KiB"),
    ("system.open_files", _edit("ulimits", "nofile 65536", "nofile 1024"), Severity.WARNING, "1024"),
    (
        "system.shared_folders",
        _section(
            "path /fsx",
            FOLDER.format("yes", "yes", "/ ext4 /dev/root", "/dev/root 101430960 31457280 69956912 32% /"),
        ),
        Severity.ERROR,
        "not on a lustre volume",
    ),
    ("system.shared_folders", _section("path /fsx", "", 124), Severity.ERROR, "no answer in time"),
    (
        "system.shared_folders",
        _section("path /fsx/huggingface", FOLDER.format("no", "yes", LUSTRE, ON_FSX)),
        Severity.ERROR,
        "/fsx/huggingface does not exist",
    ),
    (
        "system.shared_folders",
        _section("path /fsx/runs", FOLDER.format("yes", "no", LUSTRE, ON_FSX)),
        Severity.ERROR,
        "can't be written",
    ),
    (
        "system.shared_folders",
        _section(
            "path /fsx",
            FOLDER.format(
                "yes", "yes", LUSTRE, "10.0.1.20@tcp:/abcdefgh 4686012416 4685012416 1000000 100% /fsx"
            ),
        ),
        Severity.WARNING,
        "1.0 GiB free",
    ),
    ("system.disk_speed", _edit("disk_speed", "0.901 s", "9.01 s"), Severity.WARNING, "119 MB/s"),
    (
        "system.ports",
        _section("port 8100", 'LISTEN 0 2048 0.0.0.0:8100 0.0.0.0:* users:(("vllm",pid=4711,fd=20))'),
        Severity.ERROR,
        "pid=4711",
    ),
    (
        "system.shared_memory",
        _edit("shared_memory", "1056960000       0%", "56960000      95%"),
        Severity.WARNING,
        "54.3 of 1008.0 GiB",
    ),
]


def faults(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is not Severity.OK]


def test_a_healthy_node_is_ok_in_every_check(healthy: NodeFacts, wanted: Wanted) -> None:
    findings = check_node(healthy, wanted)
    assert faults(findings) == []
    assert {finding.check for finding in findings} == {check.name for check in NODE_CHECKS}


@pytest.mark.parametrize(
    ("check", "change", "severity", "words"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)]
)
def test_one_fault_is_found_by_its_check_alone(
    healthy: NodeFacts, wanted: Wanted, check: str, change: Change, severity: Severity, words: str
) -> None:
    found = faults(check_node(change(healthy), wanted))
    assert [(finding.check, finding.severity) for finding in found] == [(check, severity)]
    fault = found[0]
    assert words in "\n".join((fault.symptom, *fault.evidence, fault.cause))
    assert fault.evidence
    assert fault.cause
    assert fault.next_step
    assert fault.source


def test_no_check_is_untested() -> None:
    assert {case[0] for case in CASES} == {check.name for check in NODE_CHECKS}


@pytest.mark.parametrize("check", [check.name for check in NODE_CHECKS])
def test_nothing_read_is_unknown_and_never_ok(healthy: NodeFacts, wanted: Wanted, check: str) -> None:
    """The probe's first section only: it was cut off, or every command is missing."""
    empty = NodeFacts(
        "node", Probe({name: s for name, s in healthy.probe.sections.items() if name == "probe"})
    )
    found = {finding.check: finding for finding in check_node(empty, wanted)}
    if check == "system.disk_speed":
        assert check not in found  # it was not asked for
    elif check == "system.shared_folders":
        assert found[check].severity is Severity.ERROR
    else:
        assert found[check].severity is Severity.UNKNOWN, found[check]
        assert "no section" in found[check].symptom


def test_a_node_without_gpus_is_not_asked_for_any(healthy: NodeFacts, wanted: Wanted) -> None:
    router = replace(wanted, gpus=0, efa_devices=0, ports=(), shared=())
    names = {finding.check for finding in check_node(healthy, router)}
    assert names == {"system.time", "system.open_files", "system.disk_speed", "system.shared_memory"}


def test_ports_and_processes_of_our_own_job_are_no_fault(healthy: NodeFacts, wanted: Wanted) -> None:
    facts = with_section(healthy, "port 8100", "LISTEN 0 2048 0.0.0.0:8100 0.0.0.0:*")
    facts = with_section(facts, "gpu_processes", "4711, vllm, 131072 MiB")
    assert faults(check_node(facts, replace(wanted, own_jobs=("run-1.prefill-1",)))) == []


def test_a_node_that_was_not_reached_says_only_that(wanted: Wanted) -> None:
    down = check_node(NodeFacts("gpu-1", Probe({}), "Slurm says DOWN"), wanted)
    assert [(f.check, f.severity, f.evidence) for f in down] == [
        ("system.reached", Severity.ERROR, ("Slurm says DOWN",))
    ]
    asleep = check_node(NodeFacts("gpu-1", Probe({}), "Slurm says IDLE+POWERED_DOWN", no_fault=True), wanted)
    assert [(f.check, f.severity) for f in asleep] == [("system.reached", Severity.UNKNOWN)]


def test_a_recorded_h200_machine(recorded: Callable[[str], str]) -> None:
    """A virtual machine with one real H200; no EFA, modinfo, dkms or systemd."""
    facts = node_facts(recorded("h200-vm.txt"))
    assert [gpu.name for gpu in facts.gpus] == ["NVIDIA H200"]
    assert (facts.smi_driver, facts.loaded_driver) == ("580.159.04", "580.159.04")
    assert facts.cuda_version == "13.0"
    found = {f.check: f.severity for f in check_node(facts, Wanted(ports=(8100,)))}
    assert found["driver.gpus"] is Severity.OK
    assert found["driver.open_module"] is Severity.OK
    assert found["driver.api_mismatch"] is Severity.OK
    assert found["driver.versions"] is Severity.UNKNOWN  # modinfo is missing
    assert found["system.ports"] is Severity.UNKNOWN  # ss is missing
    assert found["system.disk_speed"] is Severity.OK
    assert not any(check.startswith("efa.") or "fabric" in check for check in found)
