"""The versions file as the toolkit reads it, and the arguments of the nodes' check."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import yaml

from toolkit.data import shipped
from toolkit.errors import SettingsError
from toolkit.plan.node_software import NodeSoftware, node_software, verify_arguments

TEXT = shipped("ami-setup", "versions.yaml").read_text(encoding="utf-8")


def test_the_published_environment() -> None:
    """Figures of the published system's appendix."""
    software = node_software()
    assert software == node_software(TEXT)
    assert (software.kernel, software.nvidia_driver, software.cuda) == (
        "6.14.0-1018-aws",
        "580.126.16",
        "13.0",
    )
    assert (software.efa_installer, software.efa_module) == ("1.50.0", "3.3.0g")
    assert (software.libfabric, software.rdma_core) == ("2.6.0amzn1.0", "64.0amzn0")
    assert (software.vllm, software.nixl) == ("0.29.0", "1.4.1")
    assert (software.nvidia_branch, software.cuda_home) == ("580", "/usr/local/cuda-13.0")


@pytest.mark.parametrize("key", sorted(NodeSoftware.__dataclass_fields__))
def test_a_missing_version_is_named(key: str) -> None:
    document = yaml.safe_load(TEXT)
    (document["engine"] if key in document["engine"] else document).pop(key)
    with pytest.raises(SettingsError, match=f"versions.yaml: {key} is None") as caught:
        node_software(yaml.safe_dump(document))
    assert key in caught.value.next_step


@pytest.mark.parametrize("text", ["", "- a\n", "engine: 3\n"])
def test_what_is_no_versions_file_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="versions.yaml"):
        node_software(text)


def test_a_version_without_quotes_is_refused() -> None:
    with pytest.raises(SettingsError, match="cuda is 13.0, not a version in quotes"):
        node_software(TEXT.replace('cuda: "13.0"', "cuda: 13.0"))


def test_no_version_is_empty() -> None:
    assert all(asdict(node_software()).values())


def test_the_arguments_of_the_nodes_check() -> None:
    software = node_software()
    gpu = verify_arguments("gpu", software, efa_devices=16, mounts=["/fsx"])
    assert gpu[:3] == ("gpu", "--driver", "580.126.16")
    assert dict(zip(gpu[1::2], gpu[2::2], strict=True)) == {
        "--driver": "580.126.16",
        "--cuda": "13.0",
        "--kernel": "6.14.0-1018-aws",
        "--efa-installer": "1.50.0",
        "--efa-module": "3.3.0g",
        "--efa-devices": "16",
        "--engine-env": "/opt/pd/engine",
        "--toolkit-env": "/opt/pd/toolkit",
        "--mount": "/fsx",
    }
    assert verify_arguments("router", software) == ("router", "--toolkit-env", "/opt/pd/toolkit")
    assert verify_arguments("head", software, mounts=["/fsx", "/home"]) == (
        "head", "--mount", "/fsx", "--mount", "/home",
    )  # fmt: skip
