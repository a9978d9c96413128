"""Who may import whom: data flows one way, and effects sit behind one seam each."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "toolkit"
ALWAYS = {"errors", "data", "__version__"}
PURE_ROOMS = ("settings", "plan", "render")
MAY_IMPORT = {
    "settings": {"settings"},
    "plan": {"settings", "plan"},
    "render": {"plan", "settings", "render"},
    # Commands for another machine go through render's quoting function.
    "remote": {*PURE_ROOMS, "remote"},
    **{room: {"plan", "settings", room} for room in ("embedded", "router", "bench", "collect")},
    "report": {"plan", "settings", "collect", "report"},
    "preflight": {"plan", "settings", "preflight"},
    "doctor": {"plan", "settings", "doctor"},
    "flows": {
        *(*PURE_ROOMS, "preflight", "remote", "embedded", "router", "bench", "collect", "report", "doctor"),
        "flows",
    },
    "testing": {*PURE_ROOMS, "remote", "testing"},
}
# Within the router: what decides knows nothing of what does.
ROUTER_MAY_IMPORT = {
    "request": {"request", "paths"},
    "paths": {"paths"},
    "wire": {"wire", "request"},
    "memory": {"memory", "request"},
    "fleet": {"fleet", "wire", "request"},
    "observe": {"observe"},
}
# Libraries with effects, and the only rooms that may use them.
EFFECTS = {
    "subprocess": {"remote", "embedded", "testing"},
    "socket": {"router", "embedded", "testing", "remote"},
    "httptools": {"router"},
    "uvloop": {"router"},
    "sqlite3": {"router"},
    "openai": {"bench"},
    "httpx": {"bench"},
    "boto3": {"remote"},
    "fabric": {"remote"},
    "paramiko": {"remote"},
}


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if PACKAGE / "data" not in path.parents]


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_obeys_the_law(path: Path) -> None:
    if room(path) in ("", "cli"):
        return
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("toolkit.")}
    assert ours - ALWAYS <= MAY_IMPORT[room(path)]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_effects_stay_behind_their_seam(path: Path) -> None:
    for library, rooms in EFFECTS.items():
        if any(name.split(".")[0] == library for name in imports(path)):
            assert room(path) in rooms, f"{library} belongs to {', '.join(sorted(rooms))}"


@pytest.mark.parametrize("name", ROUTER_MAY_IMPORT)
def test_the_rooms_of_the_router_obey_theirs(name: str) -> None:
    pure = name in ("request", "paths")
    for path in sorted((PACKAGE / "router" / name).rglob("*.py")):
        found = imports(path)
        ours = {
            parts[2]
            for each in found
            if (parts := each.split("."))[:2] == ["toolkit", "router"] and parts[2:]
        }
        assert ours <= ROUTER_MAY_IMPORT[name], path
        effects = {"asyncio", "logging", "os", "pathlib", "time"} if pure else set()
        assert not {each.split(".")[0] for each in found} & effects, path


def test_no_room_is_unknown() -> None:
    assert {room(path) for path in modules()} <= {"", "cli", "data", *MAY_IMPORT}


def test_the_connector_knows_nothing_of_the_toolkit() -> None:
    sources = sorted((PACKAGE.parent / "connector" / "src").rglob("*.py"))
    assert sources
    for path in sources:
        tree = ast.parse(path.read_text())
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not any(name.split(".")[0] == "toolkit" for name in names), path


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from toolkit.cli import cli\n"
        "try: cli(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)\n"
        "print(sorted(m for m in sys.modules if m.startswith('toolkit')), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    roots, ours = (set(ast.literal_eval(line)) for line in done.stderr.splitlines())
    heavy = {"pydantic", "yaml", "jinja2", "rich", "matplotlib", "openai", "httptools", "uvloop", "xxhash"}
    assert not roots & heavy
    assert ours == {"toolkit", "toolkit.cli", "toolkit.errors"}
