"""The probe for real on this machine, and the reading of what it prints."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from toolkit.doctor.finding import Severity, Unread
from toolkit.doctor.node_facts import UNNAMED, NodeFacts, node_facts
from toolkit.doctor.probe import Probe, Section, parse_probe
from toolkit.doctor.registry import NODE_CHECKS, check_node
from toolkit.doctor.wanted import SharedFolder, Wanted
from toolkit.errors import ToolkitError
from toolkit.flows.doctor import examine_output
from toolkit.remote.node_probe import ProbeRequest, probe_here, probe_script

SCRIPT = Path(__file__).parents[2] / "ami-setup" / "probe.sh"


def test_the_probe_is_well_formed_shell() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", SCRIPT], check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("probed"))


@pytest.fixture(scope="module")
def here(folder: str) -> NodeFacts:
    """This machine, probed once."""
    return node_facts(probe_here(ProbeRequest(paths=(folder, "/nowhere/at all"), ports=(1,))))


def test_this_machine_is_read(here: NodeFacts, folder: str) -> None:
    assert here.kernel == os.uname().release
    assert here.node == os.uname().nodename
    assert here.folder(folder).exists
    assert here.folder(folder).free_kib > 0
    assert not here.folder("/nowhere/at all").exists
    assert here.limits.keys() == {"memlock", "nofile"}
    assert all(section.status <= 127 for section in here.probe.sections.values())


def test_a_machine_without_gpu_is_told_so(here: NodeFacts, folder: str) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver")
    wanted = Wanted(gpus=8, efa_devices=16, shared=(SharedFolder(folder, "lustre"),))
    found = {finding.check: finding for finding in check_node(here, wanted)}
    for check in ("driver.gpus", "driver.versions", "driver.open_module"):
        assert found[check].severity is Severity.UNKNOWN, found[check]
    assert found["efa.module"].severity is Severity.ERROR
    assert found["system.shared_folders"].severity is Severity.ERROR
    assert "disk_speed" not in here.probe


@pytest.mark.slow
def test_the_disk_is_measured_only_when_asked_and_left_clean(tmp_path: Path) -> None:
    facts = node_facts(probe_here(ProbeRequest(disk_speed=PurePosixPath(tmp_path))))
    section = facts.probe.section("disk_speed")
    assert list(tmp_path.iterdir()) == []
    # A file system without direct I/O, such as tmpfs in older kernels, says so.
    assert len(section.lines) == 2


def test_no_value_of_the_environment_is_printed() -> None:
    environ = {**os.environ, "HF_TOKEN": "hf_verysecret", "NV_SECRET": "verysecret"}
    done = subprocess.run(
        ["bash", SCRIPT], env=environ, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    assert "verysecret" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_command_that_hangs_ends_the_section_only(tmp_path: Path) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/bash\nsleep 300\n")
    fake.chmod(0o755)
    script = probe_script().replace("limit=10 ", "limit=1 ")
    assert script != probe_script()
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-s"], input=script, env=environ, capture_output=True, text=True, check=True
    )
    facts = node_facts(done.stdout)
    assert facts.probe.section("gpus").status == 124
    with pytest.raises(Unread, match="no answer in time"):
        _ = facts.gpus
    assert facts.kernel


def test_another_users_probe_needs_no_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("is run without root already")
    done = subprocess.run(
        ["bash", "-s"],
        input=probe_script(),
        capture_output=True,
        text=True,
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        check=True,
    )
    assert parse_probe(done.stdout).text("user") == "65534"


def test_output_that_was_cut_off_keeps_what_is_whole() -> None:
    probe = parse_probe("# a note\n== probe\n1\n-- exit 0\n== kernel\n6.14.0\n-- exit 0\n== gpus\n0, NVIDIA")
    assert probe.text("kernel") == "6.14.0"
    with pytest.raises(Unread, match="no section `gpus`"):
        probe.lines("gpus")


def test_what_is_no_probe_is_refused() -> None:
    with pytest.raises(ToolkitError, match=r"not the output of probe\.sh"):
        parse_probe("hello\n")


def judge(text: str) -> set[str]:
    """The checks that say something of an output; ToolkitError for one that is no probe's."""
    report = examine_output(text, None, None)
    assert report.subject
    return {finding.check for finding in report.findings}


def test_any_beginning_of_an_output_is_judged(recorded: Callable[[str], str]) -> None:
    """A copy that was cut off, by a full disk or a scroll-back buffer."""
    text = recorded("p5en.txt")
    first = text.index("-- exit", text.index("== probe"))
    with pytest.raises(ToolkitError, match=r"not the output of probe\.sh"):
        judge(text[:first])
    ends = [first + len("-- exit 0"), *range(first + 9, len(text), 41)]
    whole = judge(text) - {"system.disk_speed"}  # told only where it was measured
    for end in ends:
        assert judge(text[:end]) >= whole, text[:end][-80:]
    least = examine_output(text[: ends[0]], None, None)
    assert least.subject == UNNAMED
    assert not any(finding.severity is Severity.ERROR for finding in least.findings)


def test_any_section_may_be_missing_or_garbled(recorded: Callable[[str], str]) -> None:
    sections = re.findall(r"== .*?^-- exit \d+\n", recorded("p5en.txt"), re.DOTALL | re.MULTILINE)
    assert len(sections) > 10
    chance = random.Random(1)
    for section in sections:
        if section.startswith("== probe\n"):
            continue
        head, *lines, end = section.splitlines()
        for _ in range(4):
            garbled = [
                "".join(chance.choice("\x00,=:/ ²५|-9{x") if chance.random() < 0.1 else c for c in line)
                for line in lines
            ]
            chance.shuffle(garbled)
            instead = "\n".join((head, *garbled, chance.choice((end, "-- exit 1"))))
            judge("".join(f"{instead}\n" if each is section else each for each in sections))
        judge("".join(each for each in sections if each is not section))


def test_garbage_in_a_section_is_never_a_traceback(healthy: NodeFacts, wanted: Wanted) -> None:
    for name in healthy.probe.sections:
        for lines in ((), ("",), ("\x00", ",,,", "= = =", " ", "a b c d e f g h"), ("{",)):
            sections = {**healthy.probe.sections, name: Section(name, lines, 0)}
            findings = check_node(NodeFacts("x", Probe(sections)), wanted)
            assert len(findings) >= len(NODE_CHECKS), name
