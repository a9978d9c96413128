"""aiperf from PyPI, in an environment of its own, and one run of it that asks nothing of the network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = "0.13.0"
FOLDER = Path(__file__).parents[2] / ".venv-clients"
INSTALL_S = 500
RUN_S = 240
CONVERSATIONS, TURNS = 6, 4


@dataclass(frozen=True)
class Told:
    """What aiperf says of its run."""

    completed: int
    errors: list[Any]
    tokens: float


def installed() -> Path:
    """The command aiperf of that version; installs it (1.2 GB, about a minute) where it is not there yet.

    Raises AssertionError with the end of pip's output: it could not.
    """
    command, mark = FOLDER / "bin" / "aiperf", FOLDER / f"aiperf-{VERSION}"
    if mark.exists() and command.exists():
        return command
    _run(INSTALL_S, sys.executable, "-m", "venv", "--clear", str(FOLDER))
    pip = (str(FOLDER / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    _run(INSTALL_S, *pip, f"aiperf=={VERSION}")
    mark.touch()
    return command


def profile(command: Path, url: str, folder: Path, *options: str) -> Told:
    """Multi-turn conversations of generated text at a router; a turn adds about 1,600 bytes."""
    tokenizer = _tokenizer(folder)
    _run(
        RUN_S,
        *(str(command), "profile", "--model-names", "tiny", "--url", url, "--tokenizer", str(tokenizer)),
        *("--conversation-num", str(CONVERSATIONS), "--concurrency", "3"),
        *("--conversation-turn-mean", str(TURNS), "--conversation-turn-stddev", "0"),
        *("--prompt-input-tokens-mean", "1600", "--prompt-output-tokens-mean", "4"),
        *("--output-artifact-dir", str(folder / "artifacts"), "--ui-type", "none", "--workers-max", "1"),
        *("--no-server-metrics", "--no-gpu-telemetry", *options),
    )
    told = json.loads((folder / "artifacts" / "profile_export_aiperf.json").read_text())
    return Told(
        int(told["completed_request_count"]["avg"]),
        told["error_summary"],
        told["total_usage_completion_tokens"]["avg"],
    )


def _tokenizer(folder: Path) -> Path:
    """One token a character, so that no model need be at hand."""
    made = folder / "tokenizer"
    made.mkdir()
    characters = ["\n", *map(chr, range(32, 127))]
    model = {"type": "BPE", "vocab": {each: place for place, each in enumerate(characters)}, "merges": []}
    described = {"version": "1.0", "model": model, "decoder": {"type": "Fuse"}, "added_tokens": []}
    (made / "tokenizer.json").write_text(json.dumps(described))
    (made / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return made


def _run(seconds: float, *command: str) -> None:
    # A folder is never looked for on the hub, but aiperf asks there whether it is a name all the same.
    environ = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=seconds)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
