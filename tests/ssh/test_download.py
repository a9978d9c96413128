"""A folder of the head node, fetched: whole, any bytes, and only what is not here already."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import cast

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


def test_a_file_that_cannot_be_fetched_keeps_no_other_from_it(head: Head, run: Path, tmp_path: Path) -> None:
    to = tmp_path / "here"
    odd = (b"caf\xe9.log", b"\xff\n.log", b"x" * 250 + b"\xe9")
    for name in odd:
        (Path(os.fsdecode(os.fsencode(run) + b"/" + name))).write_bytes(b"1")
    whole = {"logs/\r\n.log": b"1", f"logs/{'x' * 255}": b"2", "a/café .log": b"3"}
    for path, content in whole.items():
        (run / path).parent.mkdir(exist_ok=True)
        (run / path).write_bytes(content)
    with pytest.raises(ToolkitError) as caught:
        download(head, PurePosixPath(run), to, print)
    told = str(caught.value)
    assert told.startswith(f"3 of the files in {run} were not fetched:")
    assert r"'caf\udce9.log': its name is not in UTF-8" in told
    assert caught.value.exit_code == 1
    fetched = contents(to)
    assert whole.items() <= fetched.items()
    assert len(fetched) == 4 + len(whole)


class Meanwhile:
    """A head node on which something happens each time before a piece of a file is read."""

    def __init__(self, head: Head, happens: Callable[[PurePosixPath], None]) -> None:
        self._head, self._happens = head, happens

    def __getattr__(self, name: str) -> object:
        return getattr(self._head, name)

    def get(self, path: PurePosixPath, **part: int) -> str | None:
        self._happens(path)
        return self._head.get(path, **part)


def test_a_file_that_is_written_anew_meanwhile_is_fetched_whole(
    head: Head, run: Path, tmp_path: Path
) -> None:
    rows, log, seen = run / "sweep" / "rows.jsonl", run / "logs" / "line\nbreak.log", list[PurePosixPath]()

    def happens(path: PurePosixPath) -> None:
        seen.append(path)
        if Path(path) == rows:
            rows.write_bytes(b"{}\n")
        if Path(path) == log:
            log.write_bytes(log.read_bytes() + b"2\n")

    to = tmp_path / "here"
    download(cast(Head, Meanwhile(head, happens)), PurePosixPath(run), to, print)
    assert (to / "sweep" / "rows.jsonl").read_bytes() == b"{}\n"
    assert (to / "logs" / "line\nbreak.log").read_bytes() == b"1\n", "one that grows: as it was listed"
    assert seen.count(PurePosixPath(rows)) == 2


def test_one_that_goes_or_shrinks_again_and_again_is_told(head: Head, run: Path, tmp_path: Path) -> None:
    rows, big = run / "sweep" / "rows.jsonl", run / "logs" / "prefill-1.log"

    def happens(path: PurePosixPath) -> None:
        if Path(path) == rows:
            rows.unlink(missing_ok=True)
        if Path(path) == big:
            os.truncate(big, big.stat().st_size // 2)

    to = tmp_path / "here"
    with pytest.raises(ToolkitError) as caught:
        download(cast(Head, Meanwhile(head, happens)), PurePosixPath(run), to, print)
    assert str(caught.value).startswith("2 of the files in")
    assert "rows.jsonl was there, and is no longer" in str(caught.value)
    assert "logs/prefill-1.log: it got shorter while it was fetched, twice" in str(caught.value)
    assert set(contents(to)) == {"logs/line\nbreak.log", "scripts/$(x) .sbatch"}, "and no half of the others"


def test_failures_are_told(head: Head, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="can't list .*absent"):
        download(head, PurePosixPath(tmp_path / "absent"), tmp_path / "here", print)
    with pytest.raises(ToolkitError, match="is that very folder"):
        download(head, PurePosixPath(run), run, print)
    (tmp_path / "file").touch()
    with pytest.raises(ToolkitError, match=r"(?s)can't write .*file/.*give another folder with --to"):
        download(head, PurePosixPath(run), tmp_path / "file", print)
