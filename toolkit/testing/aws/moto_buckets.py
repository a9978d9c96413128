"""S3 buckets of somebody else: moto shows them to everybody, whatever owner the caller expects."""

from __future__ import annotations

from typing import Any

from moto.s3.models import s3_backends
from moto.s3.responses import S3Response


def install() -> None:
    """HeadBucket with ExpectedBucketOwner is refused for a bucket of another account, as AWS does."""
    response: Any = S3Response
    original = response.head_bucket

    def head_bucket(self: Any) -> Any:
        expected = self.headers.get("x-amz-expected-bucket-owner")
        _, owner = s3_backends.bucket_accounts.get(self.bucket_name, ("", expected))
        return (403, {}, "") if expected and owner != expected else original(self)

    response.head_bucket = head_bucket
