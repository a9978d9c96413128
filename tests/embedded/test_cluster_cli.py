"""`toolkit cluster` where no cluster runs: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli.cluster import cli
from toolkit.embedded.state import running_roots

DEPLOYMENTS = Path(__file__).parents[2] / "deployments"


def arguments(verb: str, root: Path, *more: str) -> list[str]:
    settings = ("--set", f"target.root={root}", "--set", f"target.engine_env={root / 'engine'}")
    return [verb, "-f", str(DEPLOYMENTS / "embedded.yaml"), *settings, *more]


def row(root: Path, state: str, nodes: int | None, jobs: int | None) -> dict[str, object]:
    of_aws = {"version": None, "region": None}
    return {"name": str(root), "target": "embedded", "state": state, **of_aws, "nodes": nodes, "jobs": jobs}


def test_describe_shows_the_plan_of_an_absent_cluster(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, arguments("describe", tmp_path, "-o", "json"), catch_exceptions=False)
    shown = json.loads(done.stdout)
    assert shown["state"] == "absent"
    assert [(node["name"], node["address"], node["state"]) for node in shown["nodes"]] == [
        ("prefill-1", "10.77.0.11", "absent"),
        ("decode-1", "10.77.0.12", "absent"),
        ("router-1", "10.77.0.13", "absent"),
    ]
    assert shown["daemons"] == {}
    assert list(tmp_path.iterdir()) == []


def test_list_has_the_settings_own_cluster_first(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, arguments("list", tmp_path, "-o", "json"), catch_exceptions=False)
    assert json.loads(done.stdout)[0] == row(tmp_path, "absent", 3, 0)


def test_list_without_a_file_shows_what_runs_only() -> None:
    done = CliRunner().invoke(cli, ["list", "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == [row(root, "running", None, None) for root in running_roots()]


def test_list_does_not_ignore_settings_of_no_file() -> None:
    done = CliRunner().invoke(cli, ["list", "--set", "target.root=/srv"], catch_exceptions=False)
    assert done.exit_code == 2
    assert "-f" in done.stderr


def test_delete_of_nothing_is_done_at_once(tmp_path: Path) -> None:
    root = tmp_path / "nowhere"
    done = CliRunner().invoke(cli, arguments("delete", root), catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout == ""
    assert "not there" in done.stderr
    assert not root.exists()


def test_purge_asks_first(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, arguments("delete", tmp_path / "x", "--purge"), input="n\n")
    assert done.exit_code == 2
    assert "remove models, logs" in done.stderr
    assert "--yes" in done.stderr


@pytest.mark.parametrize("option", ["--dry-run", "--no-wait", "--no-rollback"])
def test_options_of_clusters_on_aws_are_refused(tmp_path: Path, option: str) -> None:
    done = CliRunner().invoke(cli, arguments("create", tmp_path, option))
    assert done.exit_code == 2
    assert f"{option} is for AWS only" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["update", "diff", "ssh"])
def test_verbs_of_clusters_on_aws_are_refused(tmp_path: Path, verb: str) -> None:
    done = CliRunner().invoke(cli, arguments(verb, tmp_path))
    assert done.exit_code == 2
    assert "this machine" in done.stderr
