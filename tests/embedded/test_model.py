"""The made model: with the real engine environment, that its tokens depend on the whole context."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from toolkit.embedded.engine_env import engine_python
from toolkit.embedded.model import ensure_model, model_folder
from toolkit.errors import ToolkitError
from toolkit.plan.embedded import EmbeddedPlan

ENGINE = Path(__file__).parents[2] / ".venv-engine"

# Prints the greedy tokens of contexts that differ far back only, and whether a reply is read back as it was.
PROBE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(1)
tokens = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tail = tokens("the same words end it " * 8).input_ids
starts = [tokens(f"{word} " * 10).input_ids for word in "alpha beta gamma delta epsilon zeta".split()]
greedy = [int(model(torch.tensor([start + tail])).logits[0, -1].argmax()) for start in starts]
chat = [{"role": "user", "content": "How are you?"}]
prompt = tokens.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
out = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)[0].tolist()
reply = tokens.decode(out[len(prompt):])
chat += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And?"}]
later = tokens.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
print(json.dumps({"greedy": greedy, "length": len(out) - len(prompt), "kept": later[:len(out)] == out}))
"""


def test_only_recipes_are_made(make_plan: Callable[..., EmbeddedPlan], tmp_path: Path) -> None:
    plan = replace(make_plan(tmp_path), model="Qwen/Qwen3-0.6B")
    assert model_folder(plan) is None
    ensure_model(plan, print)
    assert list(tmp_path.iterdir()) == []


def test_failed_recipe_leaves_no_model(make_plan: Callable[..., EmbeddedPlan], tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    python = engine_python(plan.engine_env)
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no torch >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(ToolkitError, match="no torch"):
        ensure_model(plan, print)
    assert not (tmp_path / "models" / "tiny-qwen3").exists()


@pytest.mark.engine
def test_tokens_depend_on_the_whole_context(make_plan: Callable[..., EmbeddedPlan], tmp_path: Path) -> None:
    plan = replace(make_plan(tmp_path), engine_env=ENGINE)
    told: list[str] = []
    ensure_model(plan, told.append)
    ensure_model(plan, told.append)
    assert len(told) == 1
    folder = tmp_path / "models" / "tiny-qwen3"
    argv = [str(engine_python(ENGINE)), "-c", PROBE, str(folder)]
    seen = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert len(set(seen["greedy"])) > 1
    assert seen["length"] == 40
    assert seen["kept"]
