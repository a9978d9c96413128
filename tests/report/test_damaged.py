"""Folders with files damaged, missing or in the way: an error naming the file, no old verdict left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import SettingsError, ToolkitError
from toolkit.report.build import build, load_results

MakeFolder = Callable[..., Path]
REPORT = ("results.json", "ttft.png", "prefill.png", "index.html")
READ = (
    "settings.json",
    "software.json",
    "off/sweep/schedule.json",
    "off/sweep/rows.jsonl",
    "on/sweep/client.json",
)
LATIN1 = '{"name": "Zürich"}\n'.encode("latin-1")


def toolkit(*words: object, columns: int = 200, limit: str = "") -> subprocess.CompletedProcess[str]:
    """The command as a user runs it. `limit`: a shell's `ulimit` first."""
    command = [sys.executable, "-m", "toolkit", *map(str, words)]
    if limit:
        command = ["bash", "-c", f'{limit} && exec "$@"', "bash", *command]
    environment = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def failure(folder: Path, file: str) -> ToolkitError:
    """The error of `build`: it names `file` and the next step. A report of before is gone."""
    for name in REPORT:
        (folder / name).write_text("of before")
    with pytest.raises(ToolkitError) as told:
        build(folder)
    assert str(folder / file) in told.value.what
    assert told.value.next_step
    assert [name for name in REPORT if (folder / name).exists()] == []
    return told.value


@pytest.mark.parametrize("file", READ)
def test_bytes_that_are_no_text(make_folder: MakeFolder, file: str) -> None:
    folder = make_folder()
    (folder / file).write_bytes(LATIN1)
    error = failure(folder, file)
    assert "is not UTF-8: invalid start byte at byte 11" in error.what
    assert error.exit_code == (2 if file.endswith(("settings.json", "schedule.json")) else 1)


@pytest.mark.parametrize("file", [*READ, "on/logs/prefill-1.log"])
def test_a_folder_in_place_of_a_file(make_folder: MakeFolder, file: str) -> None:
    folder = make_folder()
    (folder / file).unlink()
    (folder / file).mkdir()
    assert "cannot be read: Is a directory" in failure(folder, file).what


@pytest.mark.parametrize("file", [file for file in READ if not file.endswith("rows.jsonl")])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "{}", "[" * 100_000])
def test_json_of_another_shape(make_folder: MakeFolder, file: str, text: str) -> None:
    folder = make_folder()
    (folder / file).write_text(text)
    error = failure(folder, file)
    assert isinstance(error, SettingsError) == file.endswith(("settings.json", "schedule.json"))


@pytest.mark.parametrize("offset", ["1e300", "NaN", "Infinity", "86400", "-1e9", '"0"', "null", "[]"])
def test_a_zone_that_is_none(make_folder: MakeFolder, offset: str) -> None:
    folder = make_folder()
    (folder / "on/sweep/client.json").write_text(f'{{"attempts": 1, "utc_offset_s": {offset}}}')
    failure(folder, "on/sweep/client.json")


@pytest.mark.parametrize("change", [{"turns": None}, {"turns": "x"}, {"settle_s": "x"}, {"points": [7]}])
def test_a_schedule_with_members_of_another_type(make_folder: MakeFolder, change: dict[str, object]) -> None:
    folder = make_folder()
    path = folder / "off/sweep/schedule.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert "not a sweep schedule: " in failure(folder, "off/sweep/schedule.json").what


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"'])
def test_what_json_cannot_write_again(make_folder: MakeFolder, value: str) -> None:
    folder = make_folder()
    (folder / "software.json").write_text(f'{{"software": {{"vllm": {value}}}, "ran_on": {{}}}}')
    assert "is not JSON" in failure(folder, "software.json").what


def test_an_infinite_setting(make_folder: MakeFolder) -> None:
    folder = make_folder()
    path = folder / "settings.json"
    settings = json.loads(path.read_text())
    settings["kv"]["stats_interval"] = float("inf")
    path.write_text(json.dumps(settings))
    assert isinstance(failure(folder, "settings.json"), SettingsError)


def test_an_old_verdict_is_not_believed(make_folder: MakeFolder) -> None:
    folder = make_folder()
    assert build(folder).valid
    (folder / "on/sweep/schedule.json").write_text("{}")
    done = toolkit("report", "build", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {folder}/on/sweep/schedule.json: not a sweep schedule: ")
    done = toolkit("report", "compare", folder, folder)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {folder}/results.json is missing\nNext: run `toolkit report build")


def test_a_folder_that_is_no_sweep_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("somebody's page")
    with pytest.raises(ToolkitError, match=f"{tmp_path} is not a sweep's folder"):
        build(tmp_path)
    assert (tmp_path / "index.html").read_text() == "somebody's page"


@pytest.mark.parametrize("leg", ["off", "on"])
def test_a_legs_folder_names_the_sweeps(
    make_folder: MakeFolder, leg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder()
    monkeypatch.chdir(folder / leg)
    for given in (folder / leg, Path()):
        with pytest.raises(ToolkitError) as told:
            build(given)
        assert told.value.what.endswith(f" is one leg of a sweep; the sweep's folder is {folder}")
        assert told.value.next_step == f"run `toolkit report build {folder}`"


@pytest.mark.parametrize("name", REPORT)
def test_a_folder_in_the_way_of_the_report(make_folder: MakeFolder, name: str) -> None:
    folder = make_folder()
    (folder / name).mkdir()
    with pytest.raises(ToolkitError, match=f"{folder}/{name} cannot be written: "):
        build(folder)
    assert not (folder / "results.json").is_file()


@pytest.mark.parametrize("blocks", [0, 16, 64])
def test_no_room_to_write(make_folder: MakeFolder, blocks: int) -> None:
    """A limit on a file's size (KiB) ends a write as a full disk does: midway, with an OSError."""
    folder = make_folder()
    before = {path.name for path in folder.iterdir()}
    done = toolkit("report", "build", folder, limit=f"ulimit -f {blocks}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {folder}/")
    assert " cannot be written: File too large\nNext: make room" in done.stderr
    assert "Traceback" not in done.stderr
    left = {path.name for path in folder.iterdir()} - before
    assert left <= {"ttft.png", "prefill.png"}, "whole pictures at most: no .new, no verdict"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "{",
        '{"valid": true, "points": 5}',
        '{"valid": true, "points": []}',
        '{"valid": "yes", "points": [{"prompt_length": 1, "off": {"ttft_ms": null}, "on": {}}]}',
        '{"valid": true, "points": [{"prompt_length": 1, "off": {"ttft_ms": {"mean": -1}}, "on": {}}]}',
        '{"valid": true, "points": [{"prompt_length": 1, "off": {"ttft_ms": {"mean": NaN}}, "on": {}}]}',
        LATIN1,
    ],
)
def test_results_of_another_shape(make_folder: MakeFolder, text: str | bytes) -> None:
    right, wrong = make_folder("right"), make_folder("wrong")
    build(right)
    path = wrong / "results.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ToolkitError) as told:
        load_results(wrong)
    assert str(path) in told.value.what
    assert told.value.next_step
    assert told.value.exit_code == 1


def test_a_name_the_figures_font_lacks_warns_nobody(make_folder: MakeFolder) -> None:
    folder, other = make_folder(), make_folder("other")
    path = folder / "settings.json"
    settings = json.loads(path.read_text())
    settings["model"]["name"] = "阿里/通义千问-$x_1$-🙂7B " + "long" * 60
    path.write_text(json.dumps(settings))
    noted = json.loads((folder / "software.json").read_text())
    noted["ran_on"]["decode-1"] = "node: 昇腾\t\x07$\\frac$"
    (folder / "software.json").write_text(json.dumps(noted))
    assert build(folder).valid, "warnings are errors here"
    done = toolkit("report", "build", folder)
    assert done.returncode == 0
    assert "arning" not in done.stderr
    build(other)
    assert (folder / "ttft.png").read_bytes() != (other / "ttft.png").read_bytes()
    assert "阿里/通义千问-$x_1$" in (folder / "index.html").read_text()


@pytest.mark.skipif(shutil.which("script") is None, reason="no `script` to make a terminal with")
@pytest.mark.parametrize("factor", [1, 400])
def test_the_tables_fit_a_terminal_of_80_columns(
    make_folder: MakeFolder, right_rows: Callable[..., list[object]], factor: int
) -> None:
    """Up to seven digits of milliseconds: no word and no number is broken over two lines."""
    from dataclasses import replace

    def slow(leg: str) -> list[object]:
        return [
            replace(row, ttft_ms=row.ttft_ms * factor, prefill_ms=row.prefill_ms * factor, total_ms=1e6)  # type: ignore[type-var,attr-defined]
            for row in right_rows(leg)
        ]

    folder = make_folder(off=slow("off"), on=slow("on"))
    build(folder)
    longest = str(1000 * factor)
    for words in (("build", folder), ("compare", folder, folder)):
        command = " ".join(map(str, (sys.executable, "-m", "toolkit", "report", *words)))
        done = subprocess.run(
            ["script", "-qec", f"env COLUMNS=80 NO_COLOR=1 TERM=dumb {command}", "/dev/null"],
            capture_output=True,
            text=True,
            check=False,
        )
        heads = "TOKENS TTFT OFF ON RATIO PREFILL KV READ MIB" if "build" in words else "TOKENS FIRST SECOND"
        assert set(heads.split()) <= set(done.stdout.split()), done.stdout
        drawn = [line for line in done.stdout.splitlines() if line.startswith(" ")]
        assert max(map(len, drawn)) <= 80, done.stdout
        table = [line for line in drawn if line.strip().startswith("4096 ")]
        assert longest in table[0].split(), done.stdout
        assert len(table[0].split()) == (9 if words[0] == "build" else 7)
