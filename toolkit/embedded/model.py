"""Models that the toolkit makes itself on the embedded target.

Others are hub ids or folders and need nothing.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from toolkit.embedded.engine_env import engine_python
from toolkit.errors import ToolkitError
from toolkit.plan.embedded import EmbeddedPlan

Progress = Callable[[str], None]

# model.name -> program, beside this file, that makes it in the folder given
RECIPES = {"tiny-qwen3": "make_model.py"}
STAMP = "recipe.sha256"


def model_folder(plan: EmbeddedPlan) -> Path | None:
    """Where the plan's model is made; None if it is not one of RECIPES."""
    return plan.root / "models" / plan.model if plan.model in RECIPES else None


def ensure_model(plan: EmbeddedPlan, progress: Progress) -> None:
    """Makes the plan's model with the engine environment's Python, unless it is there already.

    It appears whole or not at all. Raises ToolkitError with the end of the program's output.
    """
    folder = model_folder(plan)
    if folder is None:
        return
    recipe = Path(__file__).with_name(RECIPES[plan.model])
    digest = hashlib.sha256(recipe.read_bytes()).hexdigest()
    stamp = folder / STAMP
    if stamp.is_file() and stamp.read_text() == digest:
        return
    progress(f"model {plan.model}: making it in {folder}")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True)
    argv = [str(engine_python(plan.engine_env)), str(recipe), str(unfinished)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.splitlines()[-8:])
        raise ToolkitError(
            f"model {plan.model} could not be made (exit code {done.returncode}):\n{tail}",
            next_step=f"check the engine environment {plan.engine_env}",
        )
    # safetensors writes for its owner only, but jobs may run as another user than the one who made it.
    for path in unfinished.iterdir():
        path.chmod(0o644)
    (unfinished / STAMP).write_text(digest)
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)
