"""Names of S3 buckets and addresses of what they hold."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from toolkit.settings.base import pattern

# Of "General purpose bucket naming rules" in the S3 guide, what characters and length don't say.
RESERVED_STARTS = ("xn--", "sthree-", "amzn-s3-demo-")
RESERVED_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def _as_s3_takes_it(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", name):
        raise ValueError("the bucket's name must be 3 to 63 lower-case letters, digits, '.' and '-'")
    if ".." in name:
        raise ValueError("S3 takes no bucket's name with two dots in a row")
    if re.fullmatch(r"\d+(\.\d+){3}", name):
        raise ValueError("S3 takes no bucket's name that looks like an IP address")
    for word in RESERVED_STARTS:
        if name.startswith(word):
            raise ValueError(f"S3 keeps names of buckets that start with {word} to itself")
    for word in RESERVED_ENDS:
        if name.endswith(word):
            raise ValueError(f"S3 keeps names of buckets that end with {word} to itself")
    return name


def _bucket_of(url: str) -> str:
    _as_s3_takes_it(url.removeprefix("s3://").partition("/")[0])
    return url


BucketName = Annotated[
    str,
    Field(
        strict=True, pattern=pattern(r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", "a bucket's name, without s3://")
    ),
    AfterValidator(_as_s3_takes_it),
]
ScriptUrl = Annotated[
    str,
    Field(
        strict=True,
        pattern=pattern(r"^s3://[a-z0-9][a-z0-9.-]+/\S+$", "an address such as s3://bucket/folder/script.sh"),
    ),
    AfterValidator(_bucket_of),
]
