"""Which jobs a deployment becomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from toolkit.errors import SettingsError
from toolkit.plan.embedded import plan_embedded
from toolkit.plan.run import places_of, plan_run, runs_folder
from toolkit.settings.deployment import Deployment

Deployments = Callable[..., Deployment]
BASE = Path("/home/user/pd")


def test_embedded_jobs_have_nodes_of_their_own(deployment: Deployments) -> None:
    settings = deployment("embedded", "legs.decode.replicas=2")
    plan = plan_run(settings, "r", runs_folder(settings, BASE), places_of(settings, BASE, BASE / "python"))
    assert [(job.name, job.allocation.node, job.allocation.partition) for job in plan.jobs] == [
        ("prefill-1", "prefill-1", "gpu"),
        ("decode-1", "decode-1", "gpu"),
        ("decode-2", "decode-2", "gpu"),
        ("router", None, "router"),
    ]
    assert plan.router.prefill == ("prefill-1",)
    assert plan.router.decode == ("decode-1", "decode-2")
    assert plan.folder.root == PurePosixPath("/home/user/pd/runs/r")


def test_the_embedded_cluster_holds_every_job(deployment: Deployments) -> None:
    settings = deployment("embedded", "legs.decode.replicas=2")
    nodes = plan_embedded(settings, BASE, cores=2).nodes
    assert [(node.name, node.address, node.cores) for node in nodes] == [
        ("prefill-1", "10.77.0.11", (0,)),
        ("decode-1", "10.77.0.12", (1,)),
        ("decode-2", "10.77.0.13", (0,)),
        ("router-1", "10.77.0.14", (0, 1)),
    ]


def test_p5en_software_is_on_the_image_and_runs_on_the_shared_volume(deployment: Deployments) -> None:
    settings = deployment("qwen3-32b-p5en")
    places = places_of(settings, BASE, BASE / "python")
    assert places.engine_env == PurePosixPath("/opt/pd/engine")
    assert places.toolkit_python == PurePosixPath("/opt/pd/toolkit/bin/python")
    assert places.model == "Qwen/Qwen3-32B"
    assert runs_folder(settings, BASE) == PurePosixPath("/fsx/runs")
    plan = plan_run(settings, "r", runs_folder(settings, BASE), places)
    gpus = [(job.allocation.gpus, job.allocation.exclusive) for job in plan.engines]
    assert gpus == [(8, True), (8, True)]
    assert plan.router.allocation.gpus == 0


def test_a_made_model_is_found_below_the_root_and_a_folder_as_given(deployment: Deployments) -> None:
    made = places_of(deployment("embedded"), BASE, BASE / "python").model
    assert made == "/home/user/pd/.toolkit/models/tiny-qwen3"
    assert places_of(deployment("embedded", "model.name=/m"), BASE, BASE / "python").model == "/m"
    relative = places_of(deployment("qwen3-32b-p5en", "model.name=./m"), BASE, BASE / "python").model
    assert relative == "/home/user/pd/m", "a job runs in its own folder"


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "-x", "a%j", "x\n", "a" * 82, "off/", "x/on/off"])
def test_a_run_name_that_slurm_or_a_folder_cannot_take(name: str, deployment: Deployments) -> None:
    settings = deployment("embedded")
    with pytest.raises(SettingsError, match="run name"):
        plan_run(settings, name, PurePosixPath("/runs"), places_of(settings, BASE, BASE / "python"))


@pytest.mark.parametrize("folder", ["/a%jb", "/a\nb", "relative", "/a'b", '/a"b', "/a\\b", "/" + "a" * 1000])
def test_a_runs_folder_that_slurm_cannot_take(folder: str, deployment: Deployments) -> None:
    settings = deployment("embedded")
    with pytest.raises(SettingsError, match=r"target\.runs_dir"):
        plan_run(settings, "r", PurePosixPath(folder), places_of(settings, BASE, BASE / "python"))
