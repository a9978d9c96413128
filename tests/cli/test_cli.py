"""The command line as a user meets it: help, exit codes, one-paragraph errors, no traceback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from toolkit.cli import NOUNS, cli

ROOT = Path(__file__).parents[2]
EMBEDDED = "deployments/embedded.yaml"


def toolkit(*args: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "toolkit", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environ},
        check=False,
    )


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = list(commands(cli))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_command_says_what_it_does(path: tuple[str, ...], command: click.Command) -> None:
    assert command.get_short_help_str(limit=200), path
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{' '.join(path)} {parameter.opts}"


def test_help_lists_the_nouns() -> None:
    done = toolkit("--help")
    assert done.returncode == 0
    for noun, text in NOUNS.items():
        assert re.search(rf"^  {noun} +{re.escape(text[:20])}", done.stdout, re.MULTILINE)


def test_an_unknown_noun_names_the_known_ones() -> None:
    done = toolkit("clutser")
    assert done.returncode == 2
    assert "cluster" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("settings", "check", "-f", "none.yaml"), 2, "none.yaml: No such file or directory"),
        (("settings", "check", "-f", EMBEDDED, "--set", "kv.bidirectionl=1"), 2, "'kv.bidirectional'"),
        (("settings", "show"), 2, "Missing option '-f'"),
        (("job", "submit", "-f", EMBEDDED, "--name", "a b"), 2, "run name 'a b'"),
        (("job", "logs", "-f", EMBEDDED, "--run", "none"), 2, "no run in"),
        (("sweep", "resume", "-f", EMBEDDED, "--name", "none"), 2, "no sweep in"),
    ],
)
def test_a_mistake_is_one_paragraph_with_its_exit_code(
    args: tuple[str, ...], code: int, message: str
) -> None:
    done = toolkit(*args)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_no_slurm_is_told_before_anything_is_written(tmp_path: Path) -> None:
    done = toolkit("job", "submit", "-f", str(ROOT / EMBEDDED), cwd=tmp_path)
    assert done.returncode == 1
    assert "no cluster is up" in done.stderr
    assert "toolkit cluster create" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_dry_run_and_render_print_the_same_and_need_no_cluster(tmp_path: Path) -> None:
    args = ("-f", str(ROOT / EMBEDDED), "--name", "x")
    rendered = toolkit("job", "render", *args, cwd=tmp_path)
    dry = toolkit("job", "submit", "--dry-run", *args, cwd=tmp_path)
    assert (rendered.returncode, dry.returncode) == (0, 0)
    assert dry.stdout == rendered.stdout
    assert rendered.stdout.count("#!/bin/bash") == 3
    assert list(tmp_path.iterdir()) == []


def test_show_as_json_and_yaml_hold_the_same() -> None:
    as_json = json.loads(toolkit("settings", "show", "-f", EMBEDDED, "-o", "json").stdout)
    as_yaml = yaml.safe_load(toolkit("settings", "show", "-f", EMBEDDED, "-o", "yaml").stdout)
    assert as_json == as_yaml
    assert {"key": "kv.buffer_device", "value": "cpu", "source": f"file {EMBEDDED}, line 33"} in as_json


def test_a_table_in_a_pipe_is_tab_separated() -> None:
    lines = toolkit("settings", "show", "-f", EMBEDDED).stdout.splitlines()
    assert lines[0] == "KEY\tVALUE\tSOURCE"
    assert f"legs.prefill.prefix_caching\tfalse\tfile {EMBEDDED}, line 15" in lines
    assert f"model.served_name\ttiny\tfile {EMBEDDED}, line 9" in lines


def test_environment_sets_a_value() -> None:
    done = toolkit("settings", "show", "-f", EMBEDDED, TOOLKIT__ROUTER__PORT="8080")
    assert "router.port\t8080\tenvironment TOOLKIT__ROUTER__PORT" in done.stdout


def test_schema_refuses_what_the_settings_refuse() -> None:
    schema = json.loads(toolkit("settings", "schema").stdout)
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"name", "target", "model"}


@pytest.mark.parametrize(
    "document", ["README.md", "docs/from-the-post.md", "CHANGELOG.md", "ARCHITECTURE.md"]
)
def test_commands_named_in_the_documents_exist(document: str) -> None:
    known = {" ".join(path) for path, _ in ALL}
    named = re.findall(r"toolkit ((?:[a-z]+)(?: +[a-z]+(?:\|[a-z]+)*)?)", (ROOT / document).read_text())
    checked = 0
    for words in named:
        noun, *verbs = words.split()
        if noun not in NOUNS:
            continue
        for verb in verbs[0].split("|") if verbs else []:
            assert f"{noun} {verb}" in known, f"{document} names `toolkit {noun} {verb}`"
            checked += 1
    assert checked


@pytest.mark.parametrize(
    "document", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")), ids=str
)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert "://" in link or (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_changelog_knows_the_version() -> None:
    from toolkit import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
