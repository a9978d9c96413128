"""A run's plan -> its job scripts. Pure: the text returned is the text submitted."""

from __future__ import annotations

from functools import cache
from pathlib import PurePosixPath

from jinja2 import DictLoader, Environment, StrictUndefined, Template

from toolkit.data import shipped
from toolkit.plan.run import EngineJob, RouterJob, RunPlan, SweepJob
from toolkit.render.shell import command, quote

# A large model's weights take minutes to load from a shared volume.
WAIT_SECONDS = 3600

TEMPLATES = {EngineJob: "engine.sbatch.j2", RouterJob: "router.sbatch.j2", SweepJob: "sweep.sbatch.j2"}


def render_run(plan: RunPlan) -> dict[PurePosixPath, str]:
    """Every job script of the run by its path, in the order of submission."""
    return {plan.folder.script(job.name): render_job(plan, job) for job in plan.jobs}


def render_job(plan: RunPlan, job: EngineJob | RouterJob | SweepJob) -> str:
    return job_template(TEMPLATES[type(job)]).render(
        run=plan.name,
        folder=plan.folder,
        places=plan.places,
        job=job,
        lib=shipped("sbatch", "lib.sh").read_text(encoding="utf-8").rstrip("\n"),
        wait_seconds=WAIT_SECONDS,
    )


def job_template(name: str) -> Template:
    """A template of a job script, with `quote` and `command` as filters."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    names = ("head.j2", *TEMPLATES.values(), "stage.sbatch.j2")
    environment = Environment(
        loader=DictLoader({name: shipped("sbatch", name).read_text(encoding="utf-8") for name in names}),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = quote
    environment.filters["command"] = command
    return environment
