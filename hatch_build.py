"""The compiled form of the router: where HATCH_BUILD_HOOKS_ENABLE is set, a wheel gets extension modules.

mypyc compiles a copy outside the source tree: an extension module beside an edited source would hide it.
"""

from __future__ import annotations

import ast
import re
import shutil
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The modules are checked by `make lint`; here their types only steer what is made of them.
_MYPY = ("--config-file=", "--follow-imports=silent", "--ignore-missing-imports")
# At the beginning of a line: not of a class. mypyc 2.4 loses a Final tuple of floats.
_CONSTANT = re.compile(r"^(_?[A-Z][A-Z0-9_]+) =(?! \()", re.MULTILINE)
_FACTORY = re.compile(r"field\(default_factory=(\w+)\)")
_TYPED_CONSTANT = re.compile(r"^(_?[A-Z][A-Z0-9_]+): (?!Final)([^=\n]+) =(?! \()", re.MULTILINE)


class CompiledRouter(BuildHookInterface[Any]):
    """Adds the extension modules to a wheel. An editable install stays as it is.

    `modules` of its settings: which are compiled, as patterns of paths.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        folder = Path(self._folder.name)
        for built in _compiled(Path(self.root), self.config["modules"], folder):
            build_data["force_include"][str(folder / built)] = str(built.relative_to("lib"))
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, *_: object) -> None:
        if version != "editable":
            self._folder.cleanup()


def _compiled(root: Path, patterns: list[str], folder: Path) -> list[Path]:
    """The extension modules, by their paths in `folder`: all below `lib`."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    shutil.copytree(root / "toolkit", folder / "toolkit", ignore=shutil.ignore_patterns("data"))
    with chdir(folder):
        found = {path for pattern in patterns for path in Path().glob(pattern) if path.name != "__init__.py"}
        modules = [str(path) for path in sorted(found)]
        for module in modules:
            Path(module).write_text(_fit(Path(module).read_text()))
        extensions = mypycify(
            [*_MYPY, "--cache-dir=cache", *modules],
            opt_level="3",
            target_dir="c",
            group_name="pd_toolkit",
        )
        command = build_ext(Distribution({"name": "toolkit", "ext_modules": extensions}))
        command.build_lib, command.build_temp = "lib", "objects"
        command.ensure_finalized()
        command.run()
        return sorted(path for path in Path("lib").rglob("*") if path.is_file())


def _fit(source: str) -> str:
    """The source as mypyc wants it, each line where it was.

    Slots make `dataclass` replace the class, which a native one does not survive; it has no __dict__ without
    them. A constant that is Final is not looked up in the module's dictionary.
    """
    source = _with_constructors(source)
    source = _CONSTANT.sub(r"\1: Final =", source.replace("slots=True", "slots=False"))
    source = _TYPED_CONSTANT.sub(r"\1: Final[\2] =", source)
    return source.replace("import annotations\n", "import annotations; from typing import Final\n", 1)


def _with_constructors(source: str) -> str:
    """A dataclass gets its `__init__` when the module is loaded, as text that Python interprets. Here it is
    written into the blank line behind the last field, so that it is compiled.

    `frozen` goes, since that `__init__` assigns.
    """
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            mark = node.decorator_list[0].lineno - 1
            made = _constructor(fields) if lines[mark].startswith("@dataclass(") else None
            blank = (fields[-1].end_lineno or 0) if fields else 0
            # mypyc has no parameters by keyword that mix with and without a default.
            if made is not None and not lines[blank] and "kw_only" not in lines[mark]:
                own_hash = any(getattr(each, "name", "") == "__hash__" for each in node.body)
                hashed = "eq=True" if own_hash else "unsafe_hash=True"
                lines[mark] = lines[mark].replace("frozen=True", hashed).replace("(", "(init=False, ")
                lines[blank] = f"    {made}"
    return "\n".join(lines)


def _constructor(fields: list[ast.AnnAssign]) -> str | None:
    """One line that takes and keeps all of them. None: one is made in a way that is not known here."""
    taken, kept = [], []
    for each in fields:
        name, default = ast.unparse(each.target), "" if each.value is None else ast.unparse(each.value)
        factory = _FACTORY.fullmatch(default)
        if factory is None and default.startswith("field("):
            return None
        if factory is None:
            taken.append(ast.unparse(each))
        kept.append(f"self.{name} = {name if factory is None else factory[1] + '()'}")
    return f"def __init__(self, {', '.join(taken)}) -> None: {'; '.join(kept)}"
