"""Looks after one model's files in the Hugging Face cache. The stage job runs it on the cluster, with the
Python of the engine environment; it needs huggingface_hub and nothing of the toolkit.

    python model_files.py complete MODEL EXPECTED   exit 0: every file is as it was when it was verified
    python model_files.py expect MODEL EXPECTED     asks the hub for the files; is there room for them?
    python model_files.py watch MODEL EXPECTED      says every half minute how far the download is
    python model_files.py verify MODEL EXPECTED     exit 3: damaged files were removed, download again

EXPECTED is a file of the job's folder that holds the list. What was verified is noted in HF_HOME.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HTTPError, RepositoryNotFoundError
from huggingface_hub.file_download import repo_folder_name

INDEX = "model.safetensors.index.json"
# huggingface_hub writes a file under such a name and removes it when it fails, but not when it is killed.
PARTIAL = re.compile(r"\.[0-9a-f]{8}\.incomplete$")
PARTIAL_IS_OLD_SECONDS = 600
SPARE_BYTES = 2**30  # for locks, notes and other users of the volume
WATCH_SECONDS = 30
HASHERS = 4
DAMAGED = 3


class Failure(Exception):
    """Told in one line; the job fails."""


@dataclass(frozen=True)
class Expected:
    """`digest`: SHA-256 of a large file, else git's SHA-1 of a small one."""

    path: str
    size: int
    digest: str


class Model:
    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
        self.note = Path(constants.HF_HOME) / "pd-toolkit" / f"{self.folder.name}.json"

    @property
    def commit(self) -> str | None:
        ref = self.folder / "refs" / "main"
        return ref.read_text().strip() if ref.exists() else None

    def file(self, path: str) -> Path:
        return self.folder / "snapshots" / str(self.commit) / path


def complete(model: Model, _: Path) -> int:
    if not model.note.exists():
        return 1
    noted = json.loads(model.note.read_text())
    if noted["commit"] != model.commit:
        return 1
    for path, state in noted["files"].items():
        if not model.file(path).exists() or _state(model.file(path)) != state:
            return 1
    size = sum(state[0] for state in noted["files"].values())
    _say(f"{model.name} is complete, nothing to do: {_told(len(noted['files']), size)}")
    return 0


def expect(model: Model, expected: Path) -> int:
    files, commit = _ask_hub(model)
    expected.write_text(json.dumps({"commit": commit, "files": [asdict(file) for file in files]}))
    for stale in _old_partials(model):
        _say(f"removing {stale.name}, left by a download that was killed")
        stale.unlink()
    missing = sum(file.size for file in files if not (model.folder / "blobs" / file.digest).exists())
    free = shutil.disk_usage(constants.HF_HOME).free
    if missing + SPARE_BYTES > free:
        raise Failure(
            f"{model.name} needs {_gb(missing)} more and {_gb(SPARE_BYTES)} to spare, but "
            f"{constants.HF_HOME} has {_gb(free)} free; free space or set target.hf_home to a larger volume"
        )
    whole = _told(len(files), sum(file.size for file in files))
    _say(f"{model.name} at {commit[:12]}: {whole}, {_gb(missing)} to fetch")
    return 0


def _ask_hub(model: Model) -> tuple[list[Expected], str]:
    api = HfApi()
    page = f"{constants.ENDPOINT}/{model.name}"
    try:
        info = api.model_info(model.name, files_metadata=True)
        if info.gated or info.private:
            api.auth_check(model.name)
    except GatedRepoError as error:
        raise Failure(
            f"{model.name} is gated, and {_token_told()} may not download it: accept its terms at {page} "
            "with the token's account, then stage again"
        ) from error
    except RepositoryNotFoundError as error:
        raise Failure(
            f"the hub has no model {model.name}, or not for {_token_told()}: see model.name and {page}"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        refused = f"; is {_token_told()} valid?" if status in (401, 403) else ""
        raise Failure(f"{constants.ENDPOINT} answers {status} for {model.name}{refused}") from error
    except (HTTPError, OSError) as error:
        raise Failure(f"can't reach {constants.ENDPOINT} from this node: {error}") from error
    files = [
        Expected(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else str(each.blob_id))
        for each in info.siblings or []
    ]
    return files, str(info.sha)


def watch(model: Model, expected: Path) -> int:
    total = sum(file.size for file in _read(expected)[0])
    while True:
        time.sleep(WATCH_SECONDS)
        done = sum(path.stat().st_size for path in (model.folder / "blobs").glob("*") if path.is_file())
        _say(f"{_gb(min(done, total))} of {_gb(total)}")


def verify(model: Model, expected: Path) -> int:
    files, commit = _read(expected)
    if model.commit != commit:
        raise Failure(f"{model.name} changed on the hub during the download; stage it again")
    _check_index(model, files)
    started = time.monotonic()
    with ThreadPoolExecutor(HASHERS) as pool:
        damages = list(pool.map(lambda file: _damage(model, file), files))
    damaged = [(file, damage) for file, damage in zip(files, damages, strict=True) if damage]
    for file, damage in damaged:
        _say(f"{file.path} is damaged: {damage}; removed")
        link = model.file(file.path)
        link.resolve().unlink(missing_ok=True)
        link.unlink(missing_ok=True)
    if damaged:
        return DAMAGED
    note = {"commit": commit, "files": {file.path: _state(model.file(file.path)) for file in files}}
    model.note.parent.mkdir(exist_ok=True)
    new = model.note.with_suffix(f".{os.getpid()}.new")
    new.write_text(json.dumps(note))
    new.replace(model.note)
    size = sum(file.size for file in files)
    _say(
        f"{model.name} is complete: {_told(len(files), size)}, checked in {time.monotonic() - started:.0f} s"
    )
    return 0


def _check_index(model: Model, files: list[Expected]) -> None:
    """A shard that the index names and the repository lacks can't be had; the engine would fail on it."""
    known = {file.path for file in files}
    if INDEX not in known or not model.file(INDEX).exists():
        return
    try:
        named = set(json.loads(model.file(INDEX).read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        return  # a damaged index is found by its digest
    if lacking := sorted(named - known):
        raise Failure(f"{INDEX} of {model.name} names {', '.join(lacking)}, which the hub does not have")


def _damage(model: Model, file: Expected) -> str | None:
    path = model.file(file.path)
    if not path.exists():
        return "it is missing"
    size = path.stat().st_size
    if size != file.size:
        return f"{size} bytes instead of {file.size}"
    with path.open("rb") as content:
        if len(file.digest) == 64:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        else:
            # Git's name of a blob.
            digest = hashlib.sha1(b"blob %d\0" % size + content.read()).hexdigest()
    return None if digest == file.digest else f"its digest is {digest[:12]}..., not {file.digest[:12]}..."


def _read(expected: Path) -> tuple[list[Expected], str]:
    data = json.loads(expected.read_text())
    return [Expected(**file) for file in data["files"]], data["commit"]


def _old_partials(model: Model) -> Iterator[Path]:
    for path in (model.folder / "blobs").glob("*.incomplete"):
        if PARTIAL.search(path.name) and time.time() - path.stat().st_mtime > PARTIAL_IS_OLD_SECONDS:
            yield path


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _token_told() -> str:
    path = os.environ.get("HF_TOKEN_PATH")
    return f"the token in {path}" if path else "a user without a token"


def _told(count: int, size: int) -> str:
    return f"{count} files, {_gb(size)}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _say(text: str) -> None:
    print(f"{time.strftime('%F %T')} {text}", flush=True)


STEPS: dict[str, Callable[[Model, Path], int]] = {
    "complete": complete,
    "expect": expect,
    "watch": watch,
    "verify": verify,
}

if __name__ == "__main__":
    try:
        step, name, list_file = sys.argv[1:]
        sys.exit(STEPS[step](Model(name), Path(list_file)))
    except Failure as failure:
        _say(f"ERROR: {failure}")
        sys.exit(1)
