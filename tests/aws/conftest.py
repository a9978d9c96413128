"""What tests against simulated AWS share: one stand-in and two real pclusters for the whole session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from toolkit.remote.pcluster import Pcluster
from toolkit.remote.pcluster_env import PclusterEnv, ensure_pcluster
from toolkit.testing.aws import Standin, aws_standin

VERSIONS = ("3.14.2", "3.16.1")


@pytest.fixture(scope="session")
def running_standin() -> Iterator[Standin]:
    with aws_standin() as standin:
        yield standin


@pytest.fixture
def standin(running_standin: Standin) -> Standin:
    """The stand-in with a clean account: default scenario, no calls remembered."""
    running_standin.reset()
    return running_standin


@pytest.fixture(scope="session")
def pcluster_env() -> Callable[[str], PclusterEnv]:
    """Environments made in TOOLKIT_CACHE, once for all sessions."""
    return lambda version: ensure_pcluster(version, print)


@pytest.fixture
def pcluster(standin: Standin, pcluster_env: Callable[[str], PclusterEnv]) -> Callable[..., Pcluster]:
    """A real pcluster, by version, on the clean account."""

    def get(version: str = VERSIONS[0]) -> Pcluster:
        return Pcluster(pcluster_env(version), "ap-south-1", environment=standin.environment)

    return get


@pytest.fixture
def cluster_config(standin: Standin) -> Callable[..., str]:
    """The text of a small cluster: the published one's shape and nothing else."""
    return lambda **changes: small_cluster(standin.ids, **changes)


@pytest.fixture
def image_config(standin: Standin) -> Callable[[], str]:
    return lambda: small_image(standin.ids)


def small_cluster(ids: Mapping[str, str], *, nodes: int = 2, reservation: str = "") -> str:
    return f"""
Region: ap-south-1
Image:
  Os: ubuntu2404
HeadNode:
  InstanceType: c6i.2xlarge
  Networking:
    SubnetId: {ids["public_subnet"]}
  Ssh:
    KeyName: {ids["key"]}
  Iam:
    S3Access:
      - BucketName: {ids["bucket"]}
        KeyName: bootstrap/*
  CustomActions:
    OnNodeConfigured:
      Sequence:
        - Script: s3://{ids["bucket"]}/bootstrap/configure.sh
Scheduling:
  Scheduler: slurm
  SlurmQueues:
    - Name: gpu
      Networking:
        SubnetIds:
          - {ids["private_subnet"]}
        PlacementGroup:
          Enabled: false
      Iam:
        S3Access:
          - BucketName: {ids["bucket"]}
            KeyName: bootstrap/*
      CustomActions:
        OnNodeConfigured:
          Sequence:
            - Script: s3://{ids["bucket"]}/bootstrap/verify.sh
      ComputeResources:
        - Name: p5en
          InstanceType: p5en.48xlarge
          MinCount: {nodes}
          MaxCount: {nodes}
          Efa:
            Enabled: true
          CapacityReservationTarget:
            CapacityReservationId: {reservation or ids["reservation"]}
"""


def small_image(ids: Mapping[str, str]) -> str:
    return f"""
Region: ap-south-1
Image:
  Name: pd-node
Build:
  InstanceType: g4dn.4xlarge
  ParentImage: {ids["official_ami"]}
  SubnetId: {ids["public_subnet"]}
  SecurityGroupIds:
    - {ids["sg_efa"]}
  Components:
    - Type: script
      Value: s3://{ids["bucket"]}/bootstrap/upgrade.sh
"""
