"""YAML text -> its leaves, each with the line it stands on. First step of a file, flag or variable.

PyYAML parses the text and reads single values. Sections, lists and merge keys are walked here, so that each
leaf keeps its line, and so that a text that refers to itself or grows without end is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.reader import ReaderError

from toolkit.settings.shown import cut, shown

Key = tuple[str, ...]

# Far above what settings need, far below what exhausts the stack or the memory.
DEEPEST = 20
MOST_VALUES = 100_000

_CORE = "tag:yaml.org,2002:"
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "timestamp": "a date",
    "merge": "a value",
    "value": "a value",
}


class DocumentError(Exception):
    """What is wrong with a text, and the line (from 1) where known."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


@dataclass(frozen=True)
class Leaf:
    """A single value, a list, or an empty section; `line` is that of its key, from 1."""

    key: Key
    value: Any
    line: int


class Document:
    """One parsed YAML text. Every method raises DocumentError for what can't be read."""

    def __init__(self, text: str) -> None:
        try:
            self._loader = _Loader(text)
            self._root = self._loader.get_single_node()
        except ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            problem = f"the character U+{int(error.character):04X} can't stand in YAML"
            raise DocumentError(problem, line) from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = error.problem or "is not YAML"
            if problem.startswith("but "):
                problem = f"{error.context}, {problem}"
            raise DocumentError(cut(problem), mark.line + 1 if mark else None) from error
        self._sections: dict[yaml.Node, dict[str, tuple[int, yaml.Node]]] = {}
        self._merging: set[yaml.Node] = set()
        self._values = 0

    @property
    def is_section(self) -> bool:
        return isinstance(self._root, yaml.MappingNode)

    def leaves(self) -> Iterator[Leaf]:
        """The leaves of a text that is a section, merged ones at the line of the section they come from."""
        if isinstance(self._root, yaml.MappingNode):
            for count, leaf in enumerate(self._walk(self._root, (), ()), start=1):
                if count > MOST_VALUES:
                    raise DocumentError(f"holds more than {MOST_VALUES} values", leaf.line)
                yield leaf

    def value(self) -> Any:
        """The whole text as one value; None if it is empty."""
        if self._root is None:
            return None
        if self.is_section:
            return nest((leaf.key, leaf.value) for leaf in self.leaves())
        return self._value(self._root)

    def _walk(self, section: yaml.Node, at: Key, above: tuple[yaml.Node, ...]) -> Iterator[Leaf]:
        above = (*above, section)
        for name, (line, node) in self._entries(section, at).items():
            key = (*at, name)
            if node in above:
                raise DocumentError(f"{shown('.'.join(key))} holds itself", line)
            if len(above) > DEEPEST:
                raise _too_deep(line)
            if isinstance(node, yaml.MappingNode) and self._entries(node, key):
                yield from self._walk(node, key, above)
            else:
                yield Leaf(key, self._value(node, key), line)

    def _entries(self, section: yaml.Node, at: Key) -> dict[str, tuple[int, yaml.Node]]:
        """Keys of a section with their lines; its own beat merged ones, the first merged beats the next."""
        if section in self._sections:
            return self._sections[section]
        _check_tag(section, "map")
        own: dict[str, tuple[int, yaml.Node]] = {}
        merged: dict[str, tuple[int, yaml.Node]] = {}
        lines: dict[tuple[str, bool], int] = {}
        for key_node, node in section.value:
            line, merges = _line(key_node), key_node.tag == _CORE + "merge"
            if not isinstance(key_node, yaml.ScalarNode):
                raise DocumentError("a key must be a single word", line)
            name = _whole(str(key_node.value), line)
            if (name, merges) in lines:
                first = lines[name, merges]
                dotted = shown(".".join((*at, name)))
                raise DocumentError(f"{dotted} is given twice, first on line {first}", line)
            lines[name, merges] = line
            if merges:
                merged = self._merged(section, node, at, line)
            else:
                own[name] = (line, node)
        self._sections[section] = merged | own
        return self._sections[section]

    def _merged(
        self, section: yaml.Node, node: yaml.Node, at: Key, line: int
    ) -> dict[str, tuple[int, yaml.Node]]:
        if len(self._merging) > DEEPEST:
            raise _too_deep(line)
        if section in self._merging:
            raise DocumentError("'<<' merges a section into itself", line)
        self._merging.add(section)
        entries: dict[str, tuple[int, yaml.Node]] = {}
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(part, yaml.MappingNode):
                raise DocumentError("'<<' merges sections only, such as '<<: *name'", line)
            entries = self._entries(part, at) | entries
        self._merging.remove(section)
        return entries

    def _value(self, node: yaml.Node, at: Key = (), above: tuple[yaml.Node, ...] = ()) -> Any:
        """A single value, or a list whose items may be sections and lists in turn."""
        self._values += 1
        if self._values > MOST_VALUES:
            raise DocumentError(f"holds more than {MOST_VALUES} values", _line(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node in above:
            raise DocumentError(f"{shown('.'.join(at)) if at else 'the list'} holds itself", _line(node))
        if len(above) > DEEPEST:
            raise _too_deep(_line(node))
        above = (*above, node)
        if isinstance(node, yaml.MappingNode):
            entries = self._entries(node, at).items()
            return {name: self._value(inner, (*at, name), above) for name, (_, inner) in entries}
        _check_tag(node, "seq")
        return [self._value(item, at, above) for item in node.value]

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            value = self._loader.construct_object(node, deep=True)
        # PyYAML's constructors let through whatever Python's conversions raise.
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            name = node.tag.removeprefix(_CORE)
            wanted = _KINDS.get(name, f"a value of the tag {cut(name)}")
            problem = f"{shown(node.value)} is not {wanted}; quote it if it is text"
            raise DocumentError(problem, _line(node)) from error
        if isinstance(value, int) and abs(value) >= 2**63:
            raise DocumentError(f"{cut(node.value)} is too large a number", _line(node))
        return _whole(value, _line(node)) if isinstance(value, str) else value


def nest(leaves: Iterable[tuple[Key, Any]]) -> dict[str, Any]:
    """The plain nested mapping that a model validates."""
    root: dict[str, Any] = {}
    for key, value in leaves:
        here = root
        for part in key[:-1]:
            here = here.setdefault(part, {})
        here[key[-1]] = value
    return root


class _Loader(yaml.SafeLoader):
    """Stops before nested brackets exhaust Python's stack."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self._depth > DEEPEST:
            raise _too_deep(self.peek_event().start_mark.line + 1)  # type: ignore[no-untyped-call]
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _too_deep(line: int) -> DocumentError:
    return DocumentError(f"is nested more than {DEEPEST} levels deep", line)


def _check_tag(node: yaml.Node, kind: str) -> None:
    if node.tag != _CORE + kind:
        raise DocumentError(f"the tag {cut(node.tag)} can't be used here", _line(node))


def _whole(text: str, line: int) -> str:
    """Refuses the halves of characters that YAML's escapes can write and no file or argument can hold."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DocumentError(f"{shown(text)} holds half a character", line)
    return text


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
