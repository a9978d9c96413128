"""`toolkit report build`: a sweep's folder -> results.json, ttft.png, prefill.png, index.html in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from toolkit.collect.sweep import read_sweep
from toolkit.collect.sweep_file import read_object, read_text
from toolkit.errors import SettingsError, ToolkitError
from toolkit.plan.run_folder import SweepFolder
from toolkit.report.compare import Built
from toolkit.report.results import Results, summarize
from toolkit.settings.deployment import Deployment

PICTURES_AND_PAGE = ("ttft.png", "prefill.png", "index.html")
OTHER_VERSION = "the sweep was made with another version of the toolkit; run it again with this one"
BUILT = TypeAdapter(Built)


def build(sweep_folder: Path) -> Results:
    """Writes the report, also of an invalid sweep (marked so). A former report goes first and results.json
    comes last, so that its presence says that the rest is there and of the same sweep. Raises ToolkitError
    naming a file that is missing, unreadable or cannot be written."""
    from toolkit.report.figures import prefill_png, ttft_png
    from toolkit.report.page import render_page

    folder = SweepFolder(PurePosixPath(sweep_folder))
    _check_is_sweep(sweep_folder)
    # The verdict before what it speaks of.
    for stale in (Path(folder.results), *(sweep_folder / name for name in PICTURES_AND_PAGE)):
        _on_disk(stale, lambda path: path.unlink(missing_ok=True))
    results = read_results(sweep_folder)
    _replace(sweep_folder / "ttft.png", ttft_png(results))
    _replace(sweep_folder / "prefill.png", prefill_png(results))
    _replace(sweep_folder / "index.html", render_page(results).encode())
    _replace(Path(folder.results), to_text(results).encode())
    return results


def read_results(sweep_folder: Path) -> Results:
    """What a sweep's folder says, as results; writes nothing. Raises ToolkitError as `build` does."""
    folder = SweepFolder(PurePosixPath(sweep_folder))
    settings = _settings(Path(folder.settings))
    noted = _noted(Path(folder.software))
    name = sweep_folder.resolve().name
    return summarize(name, read_sweep(sweep_folder), settings, noted["software"], noted["ran_on"])


def to_text(results: Results) -> str:
    """results.json. Raises ValueError for NaN, which no reader of JSON must take."""
    return json.dumps(results.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def load_results(sweep_folder: Path) -> Built:
    """results.json of a built report. Raises ToolkitError if there is none, or another file."""
    path = Path(SweepFolder(PurePosixPath(sweep_folder)).results)
    build_it = f"run `toolkit report build {sweep_folder}`"
    if not path.exists():
        raise ToolkitError(f"{path} is missing", next_step=build_it)
    try:
        return BUILT.validate_python(read_object(path))
    except ValidationError as error:
        raise ToolkitError(f"{path} holds no results: {_first(error)}", next_step=build_it) from error


def _check_is_sweep(folder: Path) -> None:
    """Before anything is removed from it."""
    sweep = SweepFolder(PurePosixPath(folder))
    legs = [Path(sweep.leg(leg).root) for leg in ("off", "on")]
    parts = [*legs, Path(sweep.settings), Path(sweep.software)]
    real = folder.resolve()
    if real.name in ("off", "on") and not any(leg.exists() for leg in legs):
        parent = real.parent
        raise ToolkitError(
            f"{folder} is one leg of a sweep; the sweep's folder is {parent}",
            next_step=f"run `toolkit report build {parent}`",
        )
    if not any(part.exists() for part in parts):
        raise ToolkitError(
            f"{folder} is not a sweep's folder: it holds none of settings.json, software.json, off/ and on/",
            next_step="name a sweep's folder; `toolkit sweep run` makes one",
        )


def _settings(path: Path) -> Deployment:
    text = read_text(path, failure=SettingsError)
    try:
        settings = Deployment.model_validate_json(text)
        json.dumps(settings.model_dump(mode="json"), allow_nan=False)
    except ValueError as error:
        why = _first(error) if isinstance(error, ValidationError) else error
        raise SettingsError(f"{path}: {why}", next_step=OTHER_VERSION) from error
    return settings


def _noted(path: Path) -> dict[str, dict[str, Any]]:
    """software.json: versions by name, and by job the node and hardware it ran on."""
    noted = read_object(path)
    if not all(isinstance(noted.get(part), dict) for part in ("software", "ran_on")):
        raise ToolkitError(f"{path} does not hold `software` and `ran_on`", next_step=OTHER_VERSION)
    return noted


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    try:
        _on_disk(path, lambda _: new.write_bytes(content))
        _on_disk(path, lambda _: new.replace(path))
    finally:
        if new.is_file():
            new.unlink()


def _on_disk(path: Path, act: Callable[[Path], object]) -> None:
    try:
        act(path)
    except OSError as error:
        raise ToolkitError(
            f"{path} cannot be written: {error.strerror or error}",
            next_step="make room or give leave to write there, then run `toolkit report build` again",
        ) from error
