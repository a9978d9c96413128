"""What follows from a region's name alone. Pure."""

from __future__ import annotations

PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov", "us-iso-": "aws-iso", "us-isob-": "aws-iso-b"}


def partition_of(region: str) -> str:
    """The partition of a region, as the second part of an ARN names it."""
    return next((name for start, name in PARTITIONS.items() if region.startswith(start)), "aws")
