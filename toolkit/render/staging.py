"""A staging plan -> its job script and the Python beside it. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolkit.data import shipped
from toolkit.plan.staging import TOKEN_FILE, StagingPlan
from toolkit.render.jobs import job_template


def render_staging(plan: StagingPlan) -> dict[PurePosixPath, str]:
    """Every file that the job is made of, the script first."""
    script = job_template("stage.sbatch.j2").render(
        run=plan.name,
        folder=plan.folder,
        job=plan.job,
        lib=shipped("sbatch", "lib.sh").read_text(encoding="utf-8").rstrip("\n"),
        engine_env=plan.engine_env,
        hf_home=plan.hf_home,
        model=plan.model,
        endpoint=plan.endpoint,
        token_file=TOKEN_FILE,
        checker=plan.checker,
        expected=plan.expected,
    )
    checker = shipped("sbatch", "model_files.py").read_text(encoding="utf-8")
    return {plan.folder.script(plan.job.name): script, plan.checker: checker}
