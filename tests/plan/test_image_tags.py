"""An AMI's tags, in the formats that ParallelCluster writes, held against ami-setup/versions.yaml."""

from __future__ import annotations

import pytest

from toolkit.plan.image_tags import deviations, fits, told_versions
from toolkit.plan.node_software import node_software

GOOD = {
    "parallelcluster:version": "3.14.2",
    "parallelcluster:nvidia_version": "580.126.16",
    "parallelcluster:cuda_version": "13.0.2",
    "parallelcluster:efa_version": "3.3.0-1.amzn1",
    "parallelcluster:kernel_version": "6.14.0-1018-aws",
}


def test_an_image_as_it_should_be_has_no_deviations() -> None:
    assert deviations(GOOD, node_software(), "3.14.2") == ()
    assert told_versions(GOOD)["efa"] == "3.3.0-1.amzn1"


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("efa_version", "3.3.0-1.amzn1", "3.3.0g"),
        ("efa_version", "3.3.0-1", "3.3.0g"),
        ("efa_version", "3.3.0g", "3.3.0g"),
        ("efa_version", "3.3.0", "3.3.0g"),
        ("cuda_version", "13.0", "13.0"),
        ("cuda_version", "13.0.2", "13.0"),
        ("cuda_version", "13.0.20250801", "13.0"),
    ],
)
def test_the_same_version_in_the_words_of_another_tool(name: str, found: str, expected: str) -> None:
    assert fits(name, found, expected)


@pytest.mark.parametrize(
    ("tag", "value", "told"),
    [
        ("version", "3.16.1", "ParallelCluster: expected 3.14.2, found 3.16.1"),
        ("nvidia_version", "570.172.08", "NVIDIA driver: expected 580.126.16, found 570.172.08"),
        ("nvidia_version", "580.126.161", "NVIDIA driver: expected 580.126.16, found 580.126.161"),
        ("cuda_version", "13.05", "CUDA: expected 13.0, found 13.05"),
        ("cuda_version", "13.1.0", "CUDA: expected 13.0, found 13.1.0"),
        ("efa_version", "2.17.2-1.amzn1", "EFA module: expected 3.3.0g, found 2.17.2-1.amzn1"),
        ("efa_version", "3.3.01-1.amzn1", "EFA module: expected 3.3.0g, found 3.3.01-1.amzn1"),
        ("efa_version", "3.3.0.1-1", "EFA module: expected 3.3.0g, found 3.3.0.1-1"),
        ("efa_version", "13.3.0-1", "EFA module: expected 3.3.0g, found 13.3.0-1"),
        ("efa_version", "3.3-1.amzn1", "EFA module: expected 3.3.0g, found 3.3-1.amzn1"),
        ("efa_version", "", "EFA module: expected 3.3.0g, found nothing"),
        ("kernel_version", "6.14.0-1019-aws", "kernel: expected 6.14.0-1018-aws, found 6.14.0-1019-aws"),
        ("cuda_version", "null", "CUDA: expected 13.0, found nothing"),
    ],
)
def test_each_deviation_is_told(tag: str, value: str, told: str) -> None:
    found = deviations({**GOOD, f"parallelcluster:{tag}": value}, node_software(), "3.14.2")
    assert [str(each) for each in found] == [told]
