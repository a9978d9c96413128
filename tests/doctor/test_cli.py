"""toolkit doctor as a user calls it; the cluster itself is in test_slurm.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from toolkit.cli.doctor import cli

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
P5EN = str(ROOT / "deployments" / "qwen3-32b-p5en.yaml")
EMBEDDED = str(ROOT / "deployments" / "embedded.yaml")
KEYS = {"where", "check", "severity", "symptom", "evidence", "cause", "next_step", "source"}


@pytest.fixture
def doctor() -> Callable[..., Result]:
    return lambda *args: CliRunner().invoke(cli, args)


def test_a_saved_probe_of_a_healthy_node(doctor: Callable[..., Result]) -> None:
    done = doctor("node", "-f", P5EN, "--from-file", str(FIXTURES / "p5en.txt"), "-o", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["counts"] == {"error": 0, "warning": 0, "unknown": 0, "ok": len(told["findings"])}
    assert {row["where"] for row in told["findings"]} == {"gpu-st-p5en-1"}
    checks = {row["check"] for row in told["findings"]}
    assert {"driver.versions", "efa.devices", "system.shared_folders", "system.ports"} <= checks


def test_every_finding_has_all_keys_and_texts(doctor: Callable[..., Result]) -> None:
    done = doctor("node", "--from-file", str(FIXTURES / "h200-vm.txt"), "-o", "yaml")
    findings = yaml.safe_load(done.stdout)["findings"]
    for row in findings:
        assert row.keys() == KEYS
        assert row["severity"] in ("ok", "warning", "error", "unknown")
        assert isinstance(row["evidence"], list)
        assert all(isinstance(row[key], str) for key in KEYS - {"evidence"})
        assert row["source"]
        assert row["severity"] == "ok" or (row["cause"] and row["next_step"])
    order = ["error", "warning", "unknown", "ok"]
    ranks = [order.index(row["severity"]) for row in findings]
    assert ranks == sorted(ranks), "the worst comes first"


def test_an_error_exits_1_with_its_evidence(doctor: Callable[..., Result], tmp_path: Path) -> None:
    sick = (FIXTURES / "p5en.txt").read_text().replace("memlock unlimited", "memlock 8192")
    (tmp_path / "node.txt").write_text(sick)
    done = doctor("node", "-f", P5EN, "--from-file", str(tmp_path / "node.txt"))
    assert done.exit_code == 1
    header, row = done.stdout.splitlines()
    assert header == "WHERE\tSEVERITY\tCHECK\tSYMPTOM\tNEXT_STEP"
    assert row.startswith("gpu-st-p5en-1\terror\tsystem.memlock\tlocked memory is limited to 8192 KiB\t")
    assert "  | ulimit -l: 8192\n" in done.stderr
    assert "  source: https://docs.aws.amazon.com/" in done.stderr
    assert "1 error, 0 warning, 0 unknown, " in done.stderr


def test_all_lists_what_is_ok(doctor: Callable[..., Result]) -> None:
    done = doctor("node", "-f", P5EN, "--from-file", str(FIXTURES / "p5en.txt"), "--all")
    assert done.exit_code == 0
    assert "\tok\tefa.devices\t16 EFA devices\t" in done.stdout


def test_an_engines_log_alone(doctor: Callable[..., Result]) -> None:
    done = doctor("node", "--log", str(FIXTURES / "nixl-no-plugin.log"), "-o", "json")
    assert done.exit_code == 1
    found = {row["check"]: row["severity"] for row in json.loads(done.stdout)["findings"]}
    assert found == {"nixl.plugin": "error", "nixl.rails": "unknown", "nixl.rails_of_gpus": "unknown"}


def test_a_log_of_the_published_deployment(doctor: Callable[..., Result]) -> None:
    saved = ("--from-file", str(FIXTURES / "p5en.txt"))
    done = doctor("node", "-f", P5EN, *saved, "--log", str(FIXTURES / "nixl-p5en.log"), "-o", "json")
    assert done.exit_code == 0, done.output
    found = {
        r["check"]: r["severity"] for r in json.loads(done.stdout)["findings"] if r["where"] == "engines"
    }
    assert found == {"nixl.plugin": "ok", "nixl.rails": "ok", "nixl.rails_of_gpus": "ok"}


def test_this_machine(doctor: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = doctor("node", "-f", EMBEDDED, "--local", "-o", "json")
    found = {row["check"] for row in json.loads(done.stdout)["findings"]}
    # No GPU, no EFA on the embedded target; nothing of them is listed.
    assert found == {
        *("system.time", "system.open_files", "system.shared_folders", "system.ports"),
        "system.shared_memory",
    }


def test_this_machine_as_a_gpu_node_asks_neither_aws_nor_the_head_node(
    doctor: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = doctor("node", "-f", P5EN, "--local", "-o", "json")
    found = {row["check"]: row["severity"] for row in json.loads(done.stdout)["findings"]}
    assert found["efa.devices"] == "error"
    assert done.exit_code == 1


def test_without_settings_it_is_said_what_is_not_expected(doctor: Callable[..., Result]) -> None:
    assert "without -f only what is there is judged" in doctor("node", "--local").stderr


def test_no_cluster_is_an_error_with_a_next_step(
    doctor: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = doctor("cluster", "-f", EMBEDDED, "-o", "json")
    assert done.exit_code == 1
    row, head = json.loads(done.stdout)["findings"]
    assert (head["check"], head["severity"]) == ("slurm.head_node", "ok")
    assert (row["check"], row["severity"]) == ("slurm.controller", "error")
    assert "no cluster is up" in row["evidence"][0]
    assert "toolkit cluster create" in row["next_step"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "Name the cluster's settings with -f"),
        (("--node", "gpu-1"), "Name the cluster's settings"),
        (("--local", "--set", "a=b"), "name it with -f"),
        (("--local", "--from-file", P5EN), "exclude each other"),
        (("--local", "--node", "gpu-1"), "leave out --local"),
        (("--from-file", "/nowhere"), "does not exist"),
    ],
)
def test_usage(doctor: Callable[..., Result], args: tuple[str, ...], words: str) -> None:
    done = doctor("node", *args)
    assert done.exit_code == 2
    assert words in done.stderr
