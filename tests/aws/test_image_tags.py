"""pcluster's own tag script, run with tools that answer as on a right node image: its tags have to pass."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from toolkit.plan.image_tags import deviations
from toolkit.plan.node_software import node_software
from toolkit.remote.pcluster_env import PclusterEnv
from toolkit.testing.aws.scenario import Scenario

pytestmark = pytest.mark.aws

# As dpkg, modinfo and uname word it on Ubuntu 24.04 with EFA 1.50.0; `aws` keeps what it is asked to tag.
TOOLS = {
    "apt": "exit 0",
    "dpkg": 'case "$2" in efa) printf "Package: efa\\nVersion: 3.3.0-1.amzn1\\n";; *) exit 1;; esac',
    "modinfo": 'case "$1" in nvidia) printf "filename: x\\nversion:        580.126.16\\n";; '
    'efa) printf "version:        3.3.0g\\n";; *) exit 1;; esac',
    "uname": "echo 6.14.0-1018-aws",
    "aws": 'case "$*" in *create-tags*) printf "%s\\n" "${@: -1}" >> "$TAGS";; esac',
}


@pytest.mark.parametrize("version", ["3.14.2", "3.16.1"])
def test_the_tags_that_pcluster_writes_on_a_right_image_are_right(
    version: str, pcluster_env: Callable[[str], PclusterEnv], tmp_path: Path
) -> None:
    tags = written_tags(tag_script(pcluster_env(version)), tmp_path)
    assert deviations({**tags, "parallelcluster:version": version}, node_software(), version) == ()
    # The stand-in's images have what the script writes.
    assert tags["parallelcluster:efa_version"] == Scenario().efa_version
    assert tags["parallelcluster:cuda_version"] == Scenario().cuda_version
    assert tags["parallelcluster:nvidia_version"] == Scenario().nvidia_version
    assert tags["parallelcluster:kernel_version"] == Scenario().kernel_version


def tag_script(env: PclusterEnv) -> str:
    (path,) = env.folder.glob(
        "lib/python3.*/site-packages/pcluster/resources/imagebuilder/parallelcluster_tag.yaml"
    )
    (phase,) = yaml.safe_load(path.read_text(encoding="utf-8"))["phases"]
    (step,) = (each for each in phase["steps"] if each["name"] == "ParallelClusterTag")
    return str(step["inputs"]["commands"][0])


def written_tags(script: str, folder: Path) -> dict[str, str]:
    tools = folder / "bin"
    tools.mkdir()
    for name, body in TOOLS.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    cuda = folder / "cuda"
    cuda.mkdir()
    (cuda / "version.json").write_text(
        '{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}', encoding="utf-8"
    )
    for placeholder, value in (
        ("{{ test.OperatingSystemName.outputs.stdout }}", "ubuntu2404"),
        ("{{ test.AWSRegion.outputs.stdout }}", "ap-south-1"),
        ("{{ test.AmiId.outputs.stdout }}", "ami-0123456789abcdef0"),
        ("{{ CookbookDefaultFile }}", str(folder / "none.json")),
        ("/usr/local/cuda", str(cuda)),
        ("/opt/parallelcluster", str(folder / "none")),
    ):
        script = script.replace(placeholder, value)
    tags = folder / "tags"
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "TAGS": str(tags)}
    subprocess.run(["bash", "-c", script], env=environment, check=False, capture_output=True, timeout=60)
    pairs = (line.removeprefix("Key=").partition(",Value=") for line in tags.read_text().splitlines())
    return {key: value for key, _, value in pairs}
