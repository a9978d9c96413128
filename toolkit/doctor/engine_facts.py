"""What an engine's DEBUG log and a run's rendered scripts say of NIXL and UCX. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

# NIXL 1.4, src/utils/libfabric/libfabric_rail_manager.cpp.
CREATED = re.compile(r"Created rail (\d+) \(device=([^,)]+)(?:, provider=([^,)]+))?")
MAPPED = re.compile(r"device PCI (\S+) mapped to rail (\d+)|mapped to rail (\d+)")
BACKENDS = re.compile(r'"backends":\s*\[([^\]]*)\]')
# UCX_PROTO_INFO=y draws a table for each operation: a line that names it, then `| range | how | over what |`.
UCX_OPERATION = re.compile(r"\| ([^|]*\bucp_\w+\*[^|]*?) *\|")
UCX_ROW = re.compile(r"\| +(\d+(?:\.\.\w+)?) +\| ([^|]+?) *\| ([^|]+?) *\|")
# NIXL 1.4, nixl_plugin_manager.cpp and nixl_agent.cpp
NO_PLUGIN = re.compile(r"Failed to load plugin from \S+: .+|createBackend: unsupported backend '\w+'")


@dataclass(frozen=True)
class Rail:
    number: int
    device: str
    provider: str  # empty where the log does not say


@dataclass(frozen=True)
class UcxRow:
    """One size range of one operation: `zero-copy` over `cuda_ipc/cuda`."""

    operation: str
    sizes: str
    protocol: str
    transport: str
    line: str


@dataclass(frozen=True)
class EngineFacts:
    """`log`: an engine's, None if there is none to read; `scripts`: rendered job scripts by job name."""

    log: str | None = None
    scripts: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def plugin_failures(self) -> tuple[str, ...]:
        """What NIXL says when the library of a backend can't be loaded."""
        return tuple(dict.fromkeys(match[0] for match in NO_PLUGIN.finditer(self.log or "")))

    @cached_property
    def rails(self) -> tuple[Rail, ...]:
        """Each rail once, though every process of an engine opens its own."""
        found = {match.groups(): match for match in CREATED.finditer(self.log or "")}
        rails = (Rail(int(number), device, provider or "") for number, device, provider in found)
        return tuple(sorted(rails, key=lambda rail: (rail.number, rail.device)))

    @cached_property
    def rails_of_gpu(self) -> dict[str, set[int]]:
        """PCI address of a GPU, empty where the log has none -> rails its memory is registered on."""
        mapped: dict[str, set[int]] = {}
        for match in MAPPED.finditer(self.log or ""):
            mapped.setdefault(match[1] or "", set()).add(int(match[2] or match[3]))
        return mapped

    def rail_lines(self, most: int = 8) -> tuple[str, ...]:
        lines = [
            line for line in (self.log or "").splitlines() if CREATED.search(line) or MAPPED.search(line)
        ]
        return tuple(lines[:most])

    @cached_property
    def backends(self) -> dict[str, tuple[str, ...]]:
        """Job -> backends of its --kv-transfer-config, for jobs that have one."""
        found = {name: BACKENDS.search(text) for name, text in self.scripts.items()}
        return {name: tuple(re.findall(r'"([^"]+)"', match[1])) for name, match in found.items() if match}

    @cached_property
    def ucx_rows(self) -> tuple[UcxRow, ...]:
        rows: list[UcxRow] = []
        operation = ""
        for line in (self.log or "").splitlines():
            if row := UCX_ROW.search(line):
                rows.append(UcxRow(operation, row[1], row[2], row[3], line.strip()))
            elif heading := UCX_OPERATION.search(line):
                operation = heading[1].strip()
        return tuple(rows)
