"""The output of ami-setup/probe.sh, cut into its sections. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.doctor.finding import Unread
from toolkit.errors import ToolkitError

HEAD = re.compile(r"== ([a-z_]+(?: .+)?)")
END = re.compile(r"-- exit (\d+)")
TOO_LONG, MISSING = 124, 127


@dataclass(frozen=True)
class Section:
    """What one command printed, and its exit status."""

    name: str
    lines: tuple[str, ...]
    status: int

    @property
    def why(self) -> str:
        """Why it could not be read."""
        last = next((line for line in reversed(self.lines) if line.strip()), f"exit {self.status}")
        if self.status in (TOO_LONG, 128 + 9):
            return f"`{self.name}` gave no answer in time"
        return f"`{self.name}`: {last.strip()}"


@dataclass(frozen=True)
class Probe:
    sections: Mapping[str, Section]

    def __contains__(self, name: str) -> bool:
        return name in self.sections

    def section(self, name: str) -> Section:
        """Raises Unread if the probe did not get as far."""
        if name not in self.sections:
            raise Unread(f"the probe's output has no section `{name}`")
        return self.sections[name]

    def lines(self, name: str) -> tuple[str, ...]:
        """Lines of a reading that went well; raises Unread for one that did not."""
        section = self.section(name)
        if section.status != 0:
            raise Unread(section.why)
        return section.lines

    def text(self, name: str) -> str:
        """A reading that says something; raises Unread for an empty one."""
        text = "\n".join(self.lines(name)).strip()
        if not text:
            raise Unread(f"`{name}` printed nothing")
        return text

    def first(self, name: str) -> str:
        return self.text(name).splitlines()[0]

    def last(self, name: str) -> str:
        return self.text(name).splitlines()[-1]

    def named(self, kind: str) -> dict[str, Section]:
        """The sections `KIND NAME`, by NAME."""
        return {
            name.removeprefix(f"{kind} "): section
            for name, section in self.sections.items()
            if name.startswith(f"{kind} ")
        }


def parse_probe(text: str) -> Probe:
    """Raises ToolkitError for a text that is no probe's. A section that was cut off is left out."""
    sections: dict[str, Section] = {}
    name, lines = "", list[str]()
    for line in text.splitlines():
        if not name:
            if head := HEAD.fullmatch(line):
                name, lines = head[1], []
        elif end := END.fullmatch(line):
            sections[name] = Section(name, tuple(lines), int(end[1]))
            name = ""
        else:
            lines.append(line)
    if "probe" not in sections:
        raise ToolkitError(
            f"this is not the output of probe.sh: {text[:200]!r}.",
            next_step="on the node: `bash ami-setup/probe.sh >node.txt`",
        )
    return Probe(sections)
