"""No step ends without a word: every command that can end one is made to, and one clear line is told."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from toolkit.plan.image import ImagePlan
from toolkit.plan.node_software import node_software
from toolkit.render.image import render_component

SETUP = Path(__file__).parents[2] / "ami-setup"
STEPS = sorted(path.name for path in (SETUP / "steps").glob("*.sh"))
HEAD = """\
#!/usr/bin/env bash
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
"""
# Ways in which a command ends a script under errexit and pipefail without having printed anything.
SILENT = {
    "a command": "false",
    "an assignment": "found=$(false)",
    "an assignment of a pipeline": "found=$(false | cat)",
    "a pipeline": "false | cat",
    "a subshell": "(false)",
    "a subshell in a subshell": "found=$( (false) )",
    "a test": "[[ a == b ]]",
    "a count": "((0))",
    "what a reason is given for": 'pd_do "a reason" false',
    "grep": "found=$(printf 'a\\n' | grep b | head -n 1)",
    "an arithmetic expansion": "found=$(awk 'END {exit 3}' </dev/null)",
}


@pytest.fixture
def setup(tmp_path: Path) -> Path:
    """The folder of ami-setup as it lies on the image, with programs that do nothing."""
    for name in ("lib.sh", "facts.sh", "versions.yaml"):
        shutil.copy(SETUP / name, tmp_path / name)
    shutil.copytree(SETUP / "steps", tmp_path / "steps")
    return tmp_path


def errors_of(setup: Path, step: str, **environment: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        ["bash", str(setup / "steps" / step)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PD_DRY_RUN": "1", **environment},
        check=False,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if "ERROR: " in line]


@pytest.mark.parametrize("way", SILENT)
@pytest.mark.parametrize("place", ["at the top", "in a function", "in change"])
def test_a_silent_end_is_told_with_script_and_line(setup: Path, way: str, place: str) -> None:
    body = {
        "at the top": f"{SILENT[way]}\n",
        "in a function": f"act() {{\n  {SILENT[way]}\n  true\n}}\nact\n",
        "in change": f"check() {{ return 1; }}\nchange() {{\n  {SILENT[way]}\n  true\n}}\npd_step it\n",
    }[place]
    (setup / "steps" / "00-odd.sh").write_text(HEAD + body)
    line = (HEAD + body).splitlines().index(
        next(each for each in body.splitlines() if SILENT[way] in each)
    ) + 1
    code, errors = errors_of(setup, "00-odd.sh", PD_DRY_RUN="0")
    assert code == 1
    assert len(errors) == 1
    assert f"00-odd.sh line {line}" in errors[0]
    assert re.search(r"\[00-odd\] ERROR: .*: status \d+ of: ", errors[0])


@pytest.mark.parametrize(
    "ending", ["pd_fail a b c d", "found=$(pd_fail a b c d)", "found=$(echo $(true); pd_fail a b c d)"]
)
def test_an_end_that_is_told_is_told_once(setup: Path, ending: str) -> None:
    (setup / "steps" / "00-odd.sh").write_text(f"{HEAD}act() {{ {ending}; }}\nact\n")
    code, errors = errors_of(setup, "00-odd.sh")
    assert code == 1
    assert [line.partition("ERROR: ")[2] for line in errors] == ["a: expected b, found c; d"]


def test_what_fails_within_a_condition_is_no_end(setup: Path) -> None:
    body = "if ! false | cat; then :; fi\nfalse || true\n[[ -z $(false) ]]\nfails() { false; }\nfails || :\n"
    (setup / "steps" / "00-odd.sh").write_text(HEAD + body)
    assert errors_of(setup, "00-odd.sh") == (0, [])


def keys_of_steps() -> list[str]:
    texts = [(SETUP / name).read_text() for name in ("lib.sh", *(f"steps/{step}" for step in STEPS))]
    return sorted({key for text in texts for key in re.findall(r"pd_version ([a-z0-9_.]+)", text)})


@pytest.mark.parametrize("key", keys_of_steps())
def test_a_version_that_is_missing_is_named(setup: Path, key: str) -> None:
    """Whichever key a step reads, and in every step that reads it."""
    versions = yaml.safe_load((setup / "versions.yaml").read_text())
    section, _, name = key.rpartition(".")
    del (versions[section] if section else versions)[name]
    (setup / "versions.yaml").write_text(yaml.safe_dump(versions, sort_keys=False))
    readers = [
        step
        for step in STEPS
        if f"pd_version {key})" in (SETUP / "lib.sh").read_text() + (SETUP / "steps" / step).read_text()
    ]
    assert readers
    for step in readers:
        code, errors = errors_of(setup, step)
        assert code == 1
        assert len(errors) == 1
        assert f"versions.yaml: expected a value for {key}, found none; " in errors[0]


def test_no_versions_at_all_is_told(setup: Path) -> None:
    (setup / "versions.yaml").unlink()
    code, errors = errors_of(setup, STEPS[0])
    assert code == 1
    assert len(errors) == 1


def test_the_component_tells_it_under_its_own_name(tmp_path: Path) -> None:
    """Image Builder gives it a name of its own; the failure's line is found by `[component]`."""
    plan = ImagePlan(
        name="pd",
        parallelcluster="3.14.2",
        region="ap-south-1",
        parent_image="ami-0123456789abcdef0",
        instance_type="g6.4xlarge",
        component_url="s3://pd/component.sh",
        payload_url="s3://pd/payload.tar.gz",
        payload_sha256="0" * 64,
        software=node_software(),
    )
    script = tmp_path / "script-0123"
    script.write_text(render_component(plan).replace(f'cuda: "{plan.software.cuda}"', "", 1))
    done = subprocess.run(
        ["bash", str(script)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PD_DRY_RUN": "1", "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "[component] ERROR: " in line
    assert "expected a value for cuda, found none" in line
