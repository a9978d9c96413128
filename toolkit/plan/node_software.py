"""What a node's image holds: the versions of ami-setup/versions.yaml and the places on the image. Pure.

Which package gives a driver, or what dkms says of a module, is decided on the node, by ami-setup/facts.sh:
a build instance has no toolkit yet, and a decision is written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePath, PurePosixPath
from typing import Literal

import yaml

from toolkit.data import shipped
from toolkit.errors import SettingsError

ENGINE_ENV = PurePosixPath("/opt/pd/engine")
TOOLKIT_ENV = PurePosixPath("/opt/pd/toolkit")
SETUP_FOLDER = PurePosixPath("/opt/pd/ami-setup")
PAYLOAD_FOLDER = PurePosixPath("/opt/pd/payload")

Role = Literal["gpu", "head", "router"]


@dataclass(frozen=True)
class NodeSoftware:
    """Versions as ami-setup/versions.yaml states them; `vllm` and `nixl` are in its section `engine`."""

    parallelcluster: str
    parent_image: str
    kernel: str
    nvidia_driver: str
    cuda: str
    efa_installer: str
    efa_installer_sha256: str
    efa_module: str
    libfabric: str
    rdma_core: str
    vllm: str
    nixl: str

    @property
    def nvidia_branch(self) -> str:
        return self.nvidia_driver.partition(".")[0]

    @property
    def cuda_home(self) -> str:
        return f"/usr/local/cuda-{self.cuda}"


def node_software(text: str | None = None) -> NodeSoftware:
    """From the text of a versions file, or from the shipped one; SettingsError names what it lacks."""
    if text is None:
        text = shipped("ami-setup", "versions.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    values = document if isinstance(document, Mapping) else {}
    engine = values.get("engine")
    merged = {**values, **(engine if isinstance(engine, Mapping) else {})}
    return NodeSoftware(**{field.name: _version(merged, field.name) for field in fields(NodeSoftware)})


def verify_arguments(
    role: Role,
    software: NodeSoftware,
    *,
    efa_devices: int = 0,
    mounts: Sequence[PurePath | str] = (),
) -> tuple[str, ...]:
    """The arguments of ami-setup/verify.sh, which every node of that role runs as OnNodeConfigured."""
    arguments: list[str] = [role]
    if role == "gpu":
        arguments += [
            "--driver",
            software.nvidia_driver,
            "--cuda",
            software.cuda,
            "--kernel",
            software.kernel,
        ]
        arguments += ["--efa-installer", software.efa_installer, "--efa-module", software.efa_module]
        arguments += ["--efa-devices", str(efa_devices), "--engine-env", str(ENGINE_ENV)]
    if role != "head":
        arguments += ["--toolkit-env", str(TOOLKIT_ENV)]
    for mount in mounts:
        arguments += ["--mount", str(mount)]
    return tuple(arguments)


def _version(values: Mapping[str, object], key: str) -> str:
    value = values.get(key)
    # An unquoted 13.0 is a number to YAML, and 1.10 would lose its zero.
    if not isinstance(value, str) or not value:
        raise SettingsError(
            f"ami-setup/versions.yaml: {key} is {value!r}, not a version in quotes",
            next_step=f'add a line such as {key}: "1.2.3"',
        )
    return value
