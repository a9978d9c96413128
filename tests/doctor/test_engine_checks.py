"""Every check of an engine's log and of a run's scripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from toolkit.doctor.engine_facts import EngineFacts
from toolkit.doctor.finding import Severity
from toolkit.doctor.registry import ENGINE_CHECKS, check_engine
from toolkit.doctor.wanted import Wanted

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3-32b-p5en"
Recorded = Callable[[str], str]
ALL = {check.name for check in ENGINE_CHECKS}


@pytest.fixture
def engines(recorded: Recorded) -> EngineFacts:
    """The rendered scripts of the published deployment, and an engine's DEBUG log."""
    scripts = {name: (GOLDEN / f"{name}.sbatch").read_text() for name in ("prefill-1", "decode-1", "router")}
    return EngineFacts(recorded("nixl-p5en.log"), scripts)


def judged(facts: EngineFacts, wanted: Wanted) -> dict[str, tuple[Severity, str]]:
    return {
        finding.check: (finding.severity, "\n".join((finding.symptom, *finding.evidence)))
        for finding in check_engine(facts, wanted)
    }


def test_a_healthy_engine_is_ok(engines: EngineFacts, wanted: Wanted) -> None:
    found = judged(engines, wanted)
    assert {severity for severity, _ in found.values()} == {Severity.OK}
    assert found.keys() == ALL - {"nixl.ucx_get"}
    assert engines.backends == {"prefill-1": ("LIBFABRIC",), "decode-1": ("LIBFABRIC",)}


def _with(facts: EngineFacts, old: str, new: str) -> EngineFacts:
    assert facts.log is not None
    assert old in facts.log
    return replace(facts, log=facts.log.replace(old, new))


CASES: list[tuple[str, str, str, Severity, str]] = [
    ("nixl.rails", "provider=efa", "provider=tcp", Severity.ERROR, "fell back to the provider tcp"),
    (
        "nixl.rails",
        "Created rail 15 (device=rdmap223s0",
        "Made rail 15 (device=x",
        Severity.ERROR,
        "15 rails, 16",
    ),
    (
        "nixl.rails_of_gpus",
        "71:00.0 mapped to rail 1 ",
        "71:00.0 mapped to rail 0 ",
        Severity.ERROR,
        "GPU 0000:71:00.0: rails 0\n",
    ),
    ("nixl.rails_of_gpus", "on device PCI 0000:e1:00.0 mapped", "dropped", Severity.ERROR, "7 GPUs"),
]


@pytest.mark.parametrize(("check", "old", "new", "severity", "words"), CASES)
def test_rails(
    engines: EngineFacts, wanted: Wanted, check: str, old: str, new: str, severity: Severity, words: str
) -> None:
    found = judged(_with(engines, old, new), wanted)
    assert {name for name, (each, _) in found.items() if each is not Severity.OK} == {check}
    assert found[check][0] is severity
    assert words in found[check][1]


def test_a_log_without_debug_lines_is_unknown(wanted: Wanted) -> None:
    found = judged(EngineFacts("INFO: Application startup complete.\n"), wanted)
    assert found["nixl.rails"][0] is Severity.UNKNOWN
    assert found["nixl.rails_of_gpus"][0] is Severity.UNKNOWN
    assert "NIXL_LOG_LEVEL=DEBUG" in found["nixl.rails"][1]


def test_a_plugin_that_was_not_loaded(recorded: Recorded, wanted: Wanted) -> None:
    found = judged(EngineFacts(recorded("nixl-no-plugin.log")), wanted)
    severity, told = found["nixl.plugin"]
    assert severity is Severity.ERROR
    assert "libfabric.so.1: cannot open shared object file" in told
    # A plugin of a backend that nobody uses may fail.
    assert (
        judged(EngineFacts(recorded("nixl-no-plugin.log")), replace(wanted, backends=("UCX",)))[
            "nixl.plugin"
        ][0]
        is Severity.OK
    )


def test_ucx_on_nodes_with_efa_is_a_warning(engines: EngineFacts, wanted: Wanted) -> None:
    scripts = {name: text.replace('"LIBFABRIC"', '"UCX"') for name, text in engines.scripts.items()}
    found = judged(EngineFacts(None, scripts), wanted)
    assert found["nixl.backends"][0] is Severity.WARNING
    assert "prefill-1: backends UCX" in found["nixl.backends"][1]
    assert (
        judged(EngineFacts(None, scripts), replace(wanted, efa_devices=0))["nixl.backends"][0] is Severity.OK
    )


def test_engines_of_different_backends(engines: EngineFacts, wanted: Wanted) -> None:
    scripts = dict(engines.scripts) | {
        "decode-1": engines.scripts["decode-1"].replace('"LIBFABRIC"', '"UCX"')
    }
    severity, told = judged(EngineFacts(None, scripts), wanted)["nixl.backends"]
    assert severity is Severity.ERROR
    assert "decode-1: backends UCX" in told


def test_ucx_that_reads_gpu_memory_over_tcp(recorded: Recorded, wanted: Wanted) -> None:
    on_ucx = replace(wanted, backends=("UCX",), efa_devices=0)
    slow = judged(EngineFacts(recorded("ucx-get-cuda.log")), on_ucx)["nixl.ucx_get"]
    assert slow[0] is Severity.ERROR
    assert "software emulation over tcp/lo" in slow[1]
    text = recorded("ucx-get-cuda.log").replace(
        "software emulation | tcp/lo        ", "zero-copy          | cuda_ipc/cuda "
    )
    assert judged(EngineFacts(text), on_ucx)["nixl.ucx_get"][0] is Severity.OK
    silent = judged(EngineFacts("nothing of UCX\n"), on_ucx)["nixl.ucx_get"]
    assert silent[0] is Severity.UNKNOWN
    assert "UCX_PROTO_INFO=y" in silent[1]


def test_ucx_on_host_memory_as_recorded(recorded: Recorded, wanted: Wanted) -> None:
    """Without GPUs emulation over tcp is the ordinary way."""
    facts = EngineFacts(recorded("ucx-host.log"))
    reads = [row for row in facts.ucx_rows if "ucp_get" in row.operation]
    assert [(row.sizes, row.protocol, row.transport) for row in reads] == [
        ("0..inf", "software emulation", "tcp/lo")
    ]
    writes = [row for row in facts.ucx_rows if "ucp_put" in row.operation]
    assert [row.transport for row in writes] == ["52% on tcp/lo and 48% on tcp/eth0"]
    assert judged(facts, replace(wanted, backends=("UCX",), efa_devices=0))["nixl.ucx_get"][0] is Severity.OK


def test_no_check_is_untested() -> None:
    tested = {case[0] for case in CASES} | {"nixl.plugin", "nixl.backends", "nixl.ucx_get"}
    assert tested == ALL
