"""The report as files and as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from toolkit.cli.report import cli
from toolkit.errors import ResultsInvalid, SettingsError, ToolkitError
from toolkit.report.build import build

MakeFolder = Callable[..., Path]
FILES = ("results.json", "ttft.png", "prefill.png", "index.html")


class Page(HTMLParser):
    """Text and image sources; fails on anything that would run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.images: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "iframe", "object"), tag
        assert not any(name.startswith("on") or (name == "href" and value) for name, value in attrs)
        self.images += [value or "" for name, value in attrs if tag == "img" and name == "src"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_build_writes_the_report_and_leaves_nothing_half(make_folder: MakeFolder) -> None:
    folder = make_folder()
    before = {path.name for path in folder.iterdir()}
    results = build(folder)
    assert {path.name for path in folder.iterdir()} - before == set(FILES)
    written = json.loads((folder / "results.json").read_text())
    assert written == json.loads(json.dumps(results.to_json()))
    assert written["valid"] is True
    assert written["reasons"] == []
    assert written["outputs_identical"] is True
    assert written["ttft_ratio_longest"] == pytest.approx(4.0)
    assert written["prefill_ratio_longest"] == pytest.approx(980 / 230)
    assert written["software"] == {"vllm": "0.29.0", "nixl": "1.4.1"}
    assert written["settings"]["sweep"]["prompt_lengths"] == [1024, 4096]
    assert len(written["rows"]) == 12


def test_figures_are_pictures_of_the_right_size(make_folder: MakeFolder) -> None:
    folder = make_folder()
    build(folder)
    for name in ("ttft.png", "prefill.png"):
        with Image.open(folder / name) as picture:
            assert picture.size == (1350, 840)
            assert picture.format == "PNG"
            colours = picture.convert("RGB").getcolors(maxcolors=1 << 20)
        assert colours is not None
        # OFF's and ON's colours cover something.
        drawn = {colour for count, colour in colours if count > 50}
        assert {(0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)} <= drawn


def test_the_same_results_give_the_same_figures(make_folder: MakeFolder) -> None:
    a, b = make_folder("a"), make_folder("b")
    build(a)
    build(b)
    for name in ("ttft.png", "prefill.png"):
        assert (a / name).read_bytes() == (b / name).read_bytes()


def test_the_page_tells_verdict_figures_and_numbers(make_folder: MakeFolder) -> None:
    folder = make_folder()
    build(folder)
    page = Page((folder / "index.html").read_text())
    assert page.images == ["ttft.png", "prefill.png"]
    for shown in (
        "Valid",
        "4.00×",
        "4.26×",
        "tiny-qwen3",
        "one machine, CPU engines",
        "0.29.0",
        "33.0",
        "150",
    ):
        assert shown in page.text
    assert "INVALID" not in page.text
    assert page.text.index("Valid") < page.text.index("Figures") < page.text.index("Numbers")


def test_an_invalid_sweep_is_built_and_marked(make_folder: MakeFolder, change_row: Any) -> None:
    folder = make_folder("bad", on=change_row("on", "4096-0", 2, path="prefill"))
    right = make_folder("right")
    assert not build(folder).valid
    build(right)
    page = Page((folder / "index.html").read_text())
    assert "INVALID" in page.text
    assert "on 4096-0 turn 2: took path prefill, expected readback" in page.text
    assert json.loads((folder / "results.json").read_text())["valid"] is False
    assert (folder / "ttft.png").read_bytes() != (right / "ttft.png").read_bytes()


def test_everything_on_the_page_is_escaped(make_folder: MakeFolder, change_row: Any) -> None:
    evil = "<script>alert('x')</script><img src=x onerror=alert(1)>"
    folder = make_folder(off=change_row("off", "1024-0", 2, error=evil, path=evil))
    (folder / "software.json").write_text(
        json.dumps({"software": {evil: evil}, "ran_on": {"prefill-1": f"node: {evil}"}})
    )
    settings = json.loads((folder / "settings.json").read_text())
    settings["model"]["name"] = evil
    (folder / "settings.json").write_text(json.dumps(settings))
    build(folder)
    page = Page((folder / "index.html").read_text())
    assert page.images == ["ttft.png", "prefill.png"]
    assert page.text.count(evil) >= 6


def test_a_sweep_without_any_row_still_gives_a_report(make_folder: MakeFolder) -> None:
    folder = make_folder(off=[], on=[], log="")
    assert not build(folder).valid
    assert all((folder / name).stat().st_size > 1000 for name in FILES)


@pytest.mark.parametrize("name", ["settings.json", "software.json"])
def test_a_missing_file_is_named_with_what_to_run(make_folder: MakeFolder, name: str) -> None:
    folder = make_folder()
    (folder / name).unlink()
    with pytest.raises(ToolkitError, match=rf"{name} is missing\nNext: .*toolkit sweep run"):
        build(folder)


def test_a_software_file_of_another_shape(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "software.json").write_text('{"vllm": "0.29.0"}')
    with pytest.raises(ToolkitError, match="does not hold `software` and `ran_on`"):
        build(folder)


def test_settings_of_another_version(make_folder: MakeFolder) -> None:
    folder = make_folder()
    settings = json.loads((folder / "settings.json").read_text())
    settings["sweep"]["turns"] = 1
    (folder / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(SettingsError, match=r"settings.json: sweep\.turns: "):
        build(folder)


def invoke(*words: object) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_command_build(make_folder: MakeFolder) -> None:
    folder = make_folder()
    done = invoke("build", folder)
    assert done.exit_code == 0, done.output
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert lines[0][:4] == ["TOKENS", "TTFT OFF", "ON", "RATIO"]
    assert lines[2][:4] == ["4096", "1000", "250", "4.00"]
    assert f"report: {folder}/index.html" in done.stderr
    assert json.loads(invoke("build", folder, "-o", "json").stdout)["valid"] is True


def test_command_build_of_an_invalid_sweep_exits_4(make_folder: MakeFolder, change_row: Any) -> None:
    folder = make_folder(on=change_row("on", "4096-0", 2, path="prefill"))
    done = invoke("build", folder)
    assert isinstance(done.exception, ResultsInvalid)
    assert done.exception.exit_code == 4
    assert "on 4096-0 turn 2: took path prefill" in str(done.exception)
    assert done.stdout.count("\n") == 3, "a header and the two lengths"


def test_command_build_takes_the_newest_sweep(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no sweep under" in str(invoke("build").exception)
    make_folder("runs/first")
    assert "report: runs/first/index.html" in invoke("build").stderr


def test_command_compare(make_folder: MakeFolder, right_rows: Any) -> None:
    from dataclasses import replace

    halved = [replace(row, ttft_ms=row.ttft_ms / 2, prefill_ms=row.ttft_ms / 3) for row in right_rows("on")]
    a, b = make_folder("a"), make_folder("b", on=halved)
    assert "results.json is missing" in str(invoke("compare", a, b).exception)
    build(a)
    build(b)
    lines = json.loads(invoke("compare", a, b, "-o", "json").stdout)
    assert lines[1] == {
        "prompt_length": 4096,
        "off_first": 1000.0,
        "off_second": 1000.0,
        "off_ratio": 1.0,
        "on_first": 250.0,
        "on_second": 125.0,
        "on_ratio": 2.0,
    }
    done = invoke("compare", a, b)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[2].split("\t")[-3:] == ["250", "125", "2.00"]


def test_command_compare_with_an_invalid_sweep_exits_4(make_folder: MakeFolder) -> None:
    a, b = make_folder("a"), make_folder("b", off=[])
    build(a)
    build(b)
    done = invoke("compare", a, b)
    assert isinstance(done.exception, ResultsInvalid)
    assert str(b) in str(done.exception)
    assert str(a) + " " not in str(done.exception)
    assert done.stdout


def test_help_loads_no_heavy_package() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from toolkit.cli.report import cli; "
        "assert CliRunner().invoke(cli, ['build', '--help']).exit_code == 0; "
        "print([name for name in ('matplotlib', 'jinja2', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
