"""What a probe says of a node, read on demand: a property raises Unread if its section could not be had."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from toolkit.doctor.finding import Unread
from toolkit.doctor.probe import Probe, parse_probe
from toolkit.doctor.wanted import Wanted

UNNAMED = "node of unknown name"
NVIDIA, NVSWITCH_H100 = "10de", "10de:22a3"
AMAZON_EFA = re.compile(r" 1d0f:efa\d$")
VERSION = re.compile(r"\b(\d+(?:\.\d+)+[0-9a-z.]*)")


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    driver: str
    bus: str


@dataclass(frozen=True)
class RdmaDevice:
    name: str
    driver: str
    numa_node: int | None
    state: str


@dataclass(frozen=True)
class Package:
    """`status`: dpkg's abbreviation, `ii` for one that is installed whole."""

    name: str
    version: str
    status: str


@dataclass(frozen=True)
class DkmsModule:
    """`kernel` is empty for a module that is only added."""

    module: str
    version: str
    kernel: str
    state: str


@dataclass(frozen=True)
class Folder:
    """`mounted_on`, `filesystem`, `source`: of the mount that holds it; `free_kib`: of that volume."""

    path: str
    exists: bool
    writable: bool
    mounted_on: str
    filesystem: str
    source: str
    free_kib: int
    size_kib: int


@dataclass(frozen=True)
class NodeFacts:
    """A node by name. `unreached`: why there is no probe; `no_fault`: it is asleep or taken."""

    node: str
    probe: Probe
    unreached: str = ""
    no_fault: bool = False

    def only_what_was_asked(self, wanted: Wanted) -> Wanted:
        """`wanted` without folders and ports that the probe was not told to look at."""
        return replace(
            wanted,
            shared=tuple(each for each in wanted.shared if f"path {each.path}" in self.probe),
            ports=tuple(port for port in wanted.ports if f"port {port}" in self.probe),
        )

    @cached_property
    def kernel(self) -> str:
        return self.probe.text("kernel")

    @cached_property
    def pci(self) -> tuple[str, ...]:
        return self.probe.lines("pci")

    @property
    def nvswitches(self) -> tuple[str, ...]:
        return tuple(line for line in self.pci if line.endswith(NVSWITCH_H100))

    @property
    def efa_hardware(self) -> tuple[str, ...]:
        return tuple(line for line in self.pci if AMAZON_EFA.search(line))

    @property
    def nvidia_hardware(self) -> tuple[str, ...]:
        return tuple(line for line in self.pci if f" {NVIDIA}:" in line and not line.endswith(NVSWITCH_H100))

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(_gpu(line) for line in self.probe.lines("gpus") if line.strip())

    @cached_property
    def smi_driver(self) -> str:
        """The version that nvidia-smi reports."""
        if not self.gpus:
            raise Unread("nvidia-smi lists no GPU")
        return self.gpus[0].driver

    @cached_property
    def loaded_driver(self) -> str:
        """Of the kernel's module: `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.16`"""
        return _version(self.probe.first("driver_loaded"), "driver_loaded", after="x86_64")

    @cached_property
    def installed_driver(self) -> str:
        """Of the module on disk, which the next boot loads."""
        return self.probe.text("driver_installed")

    @cached_property
    def packages(self) -> tuple[Package, ...]:
        return tuple(
            Package(name=name, version=version, status=status)
            for status, name, version in (
                line.split(maxsplit=2)
                for line in self.probe.lines("packages")
                if len(line.split(maxsplit=2)) == 3
            )
        )

    def package(self, pattern: str) -> Package | None:
        """The first installed package whose name matches whole; half-configured ones count."""
        installed = [each for each in self.packages if each.status[:1] == "i"]
        return next((each for each in installed if re.fullmatch(pattern, each.name)), None)

    @cached_property
    def held(self) -> tuple[str, ...]:
        return self.probe.lines("held")

    @cached_property
    def dkms(self) -> tuple[DkmsModule, ...]:
        return tuple(filter(None, map(_dkms_module, self.probe.lines("dkms"))))

    @cached_property
    def kernel_log(self) -> tuple[str, ...]:
        """Its lines on NVIDIA and EFA. A loaded driver has left some, so none means: not readable."""
        return tuple(self.probe.text("kernel_log").splitlines())

    @cached_property
    def cuda_version(self) -> str:
        """The toolkit's, `13.0.2`, from its version.json; without one, `13.0` from the link's end."""
        link = re.search(r"cuda-(\d+(?:\.\d+)+)$", self.probe.text("cuda_link"))
        if link and self.probe.section("cuda_version").status != 0:
            return link[1]
        try:
            return str(json.loads(self.probe.text("cuda_version"))["cuda"]["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise Unread(f"version.json of CUDA has no version ({error})") from error

    @cached_property
    def efa_installer(self) -> str:
        """`# EFA installer version: 1.50.0`"""
        return _version(self.probe.first("efa_packages"), "efa_packages", after=":")

    @cached_property
    def libfabric(self) -> str:
        """`fi_info: 2.6.0amzn1.0`, or `libfabric: ...`; the latter where there are both."""
        lines = [line for line in self.probe.lines("libfabric") if VERSION.search(line)]
        chosen = next((line for line in lines if line.startswith("libfabric:")), "".join(lines[:1]))
        return _version(chosen, "libfabric")

    @cached_property
    def rdma_devices(self) -> tuple[RdmaDevice, ...]:
        return tuple(_rdma_device(line) for line in self.probe.lines("rdma_devices") if line.strip())

    @property
    def efa_devices(self) -> tuple[RdmaDevice, ...]:
        return tuple(each for each in self.rdma_devices if each.driver == "efa")

    @cached_property
    def limits(self) -> dict[str, str]:
        """`memlock` in KiB and `nofile`, or the word `unlimited`."""
        found = dict(line.partition(" ")[::2] for line in self.probe.lines("ulimits"))
        limits = {name: found.get(name, "") for name in ("memlock", "nofile")}
        if not all(re.fullmatch(r"\d+|unlimited", limit) for limit in limits.values()):
            raise Unread(f"ulimit said {found}")
        return limits

    def service(self, section: str) -> dict[str, str]:
        """A systemd unit's properties."""
        return dict(line.split("=", 1) for line in self.probe.lines(section) if "=" in line)

    def folder(self, path: str) -> Folder:
        """Raises Unread if it was not asked for or gave no answer, as a dead network mount does."""
        return _folder(path, self.probe.text(f"path {path}").splitlines())


def node_facts(text: str, node: str | None = None) -> NodeFacts:
    """`node`: its name; default: the one it gives itself, or UNNAMED if the probe does not tell it."""
    probe = parse_probe(text)
    try:
        return NodeFacts(node or probe.text("hostname"), probe)
    except Unread:
        return NodeFacts(UNNAMED, probe)


def _version(line: str, section: str, after: str = "") -> str:
    match = VERSION.search(line.partition(after)[2] if after else line)
    if match is None:
        raise Unread(f"`{section}` tells no version: {line.strip()!r}")
    return match[1]


def _gpu(line: str) -> Gpu:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 4 or not parts[0].isdecimal():
        raise Unread(f"nvidia-smi said {line.strip()!r}")
    return Gpu(index=int(parts[0]), name=parts[1], driver=parts[2], bus=parts[3])


def _rdma_device(line: str) -> RdmaDevice:
    name, *pairs = line.split(maxsplit=3)
    values = dict(pair.partition("=")[::2] for pair in pairs)
    numa = values.get("numa", "")
    return RdmaDevice(
        name=name,
        driver=values.get("driver", ""),
        numa_node=int(numa) if re.fullmatch(r"\d+", numa) else None,
        state=values.get("state", ""),
    )


def _dkms_module(line: str) -> DkmsModule | None:
    """`efa/3.3.0, 6.14.0-1018-aws, x86_64: installed`; without kernel: `efa/3.3.0: added`."""
    match = re.match(r"([^/,]+)[/,] ?([^,:]+)(?:, ([^,]+), [^:]+)?: ?(.+)", line)
    return DkmsModule(match[1], match[2], match[3] or "", match[4].strip()) if match else None


def _folder(path: str, lines: Sequence[str]) -> Folder:
    first = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    mounted_on, filesystem, source, *_ = [*first.get("mount", []), "", "", ""]
    size, free = _df(lines[-1])
    return Folder(
        path=path,
        exists=first.get("exists") == ["yes"],
        writable=first.get("writable") == ["yes"],
        mounted_on=mounted_on,
        filesystem=filesystem,
        source=source,
        free_kib=free,
        size_kib=size,
    )


def _df(line: str) -> tuple[int, int]:
    """KiB of the volume and free on it, from the last line of `df -Pk`."""
    words = line.split()
    if len(words) < 6 or not (words[1].isdecimal() and words[3].isdecimal()):
        raise Unread(f"df said {line.strip()!r}")
    return int(words[1]), int(words[3])


def shared_memory_kib(facts: NodeFacts) -> tuple[int, int]:
    """KiB of /dev/shm and free in it."""
    return _df(facts.probe.last("shared_memory"))
