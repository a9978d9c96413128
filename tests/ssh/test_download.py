"""A folder of the head node, fetched: whole, any bytes, and only what is not here already."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from toolkit.errors import ToolkitError
from toolkit.flows.download import PIECE_BYTES, download
from toolkit.remote.head import Head


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with awkward names, bytes that are no text, and a file of more than one piece."""
    folder = tmp_path / "cluster" / "a run"
    for path, content in {
        "logs/prefill-1.log": b"x\xff\xfe\xe2\x86\n" * 3_500_000,
        "logs/line\nbreak.log": b"1\n",
        "scripts/$(x) .sbatch": b"",
        "sweep/rows.jsonl": b'{"a": 1}\n',
        ".lock": b"",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    assert (folder / "logs" / "prefill-1.log").stat().st_size > PIECE_BYTES
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_byte_comes_and_comes_once(head: Head, run: Path, tmp_path: Path) -> None:
    told: list[str] = []
    to = tmp_path / "here" / "run"
    assert download(head, PurePosixPath(run), to, told.append) == to
    wanted = contents(run)
    del wanted[".lock"]
    assert contents(to) == wanted
    rows = to / "sweep" / "rows.jsonl"
    before = rows.stat().st_ino
    with (run / "logs" / "prefill-1.log").open("ab") as log:
        log.write(b"more\n")
    (to / "scripts" / "$(x) .sbatch").unlink()
    download(head, PurePosixPath(run), to, told.append)
    assert contents(to) == {**wanted, "logs/prefill-1.log": (run / "logs" / "prefill-1.log").read_bytes()}
    assert rows.stat().st_ino == before, "what has not changed is not fetched again"
    assert told[0].startswith("fetching 4 of 4 files, 21.0 MB")
    assert told[1].startswith("fetching 2 of 4 files")


def test_a_rewritten_file_of_the_same_size_is_fetched_again(head: Head, run: Path, tmp_path: Path) -> None:
    to = tmp_path / "here"
    download(head, PurePosixPath(run), to, print)
    (run / "sweep" / "rows.jsonl").write_bytes(b'{"a": 2}\n')
    os.utime(run / "sweep" / "rows.jsonl", ns=(1, 1_700_000_000_000_000_001))
    download(head, PurePosixPath(run), to, print)
    assert (to / "sweep" / "rows.jsonl").read_bytes() == b'{"a": 2}\n'


def test_failures_are_told(head: Head, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="can't list .*absent"):
        download(head, PurePosixPath(tmp_path / "absent"), tmp_path / "here", print)
    with pytest.raises(ToolkitError, match="is that very folder"):
        download(head, PurePosixPath(run), run, print)
    (tmp_path / "file").touch()
    with pytest.raises(ToolkitError, match=r"(?s)can't write .*file/.*give another folder with --to"):
        download(head, PurePosixPath(run), tmp_path / "file", print)
