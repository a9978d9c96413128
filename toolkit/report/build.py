"""`toolkit report build`: a sweep's folder -> results.json, ttft.png, prefill.png, index.html in it."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from toolkit.collect.sweep import read_sweep, read_text
from toolkit.errors import SettingsError, ToolkitError
from toolkit.plan.run_folder import SweepFolder
from toolkit.report.results import Results, summarize
from toolkit.settings.deployment import Deployment


def build(sweep_folder: Path) -> Results:
    """Writes the report, also of an invalid sweep (marked so); results.json comes last, so that its
    presence says that the rest is there. Raises ToolkitError naming a missing or unreadable file."""
    from toolkit.report.figures import prefill_png, ttft_png
    from toolkit.report.page import render_page

    folder = SweepFolder(PurePosixPath(sweep_folder))
    settings = _settings(Path(folder.settings))
    noted = _noted(Path(folder.software))
    results = summarize(
        sweep_folder.resolve().name, read_sweep(sweep_folder), settings, noted["software"], noted["ran_on"]
    )
    _replace(sweep_folder / "ttft.png", ttft_png(results))
    _replace(sweep_folder / "prefill.png", prefill_png(results))
    _replace(sweep_folder / "index.html", render_page(results).encode())
    text = json.dumps(results.to_json(), indent=2, ensure_ascii=False) + "\n"
    _replace(Path(folder.results), text.encode())
    return results


def load_results(sweep_folder: Path) -> dict[str, Any]:
    """results.json of a built report. Raises ToolkitError if there is none."""
    path = Path(SweepFolder(PurePosixPath(sweep_folder)).results)
    if not path.exists():
        raise ToolkitError(f"{path} is missing", next_step=f"run `toolkit report build {sweep_folder}`")
    return _json(path)


def _settings(path: Path) -> Deployment:
    try:
        return Deployment.model_validate_json(read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise SettingsError(
            f"{path}: {where}: {first['msg']}",
            next_step="the sweep was made with another version of the toolkit; run it again with this one",
        ) from error


def _noted(path: Path) -> dict[str, dict[str, Any]]:
    """software.json: versions by name, and by job the node and hardware it ran on."""
    noted = _json(path)
    if not all(isinstance(noted.get(part), dict) for part in ("software", "ran_on")):
        raise ToolkitError(
            f"{path} does not hold `software` and `ran_on`",
            next_step="the sweep was made with another version of the toolkit; run it again with this one",
        )
    return noted


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path))
    except ValueError as error:
        raise ToolkitError(f"{path} is not JSON: {error}", next_step="run the sweep again") from error
    if not isinstance(data, dict):
        raise ToolkitError(f"{path} holds no JSON object", next_step="run the sweep again")
    return data


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)
