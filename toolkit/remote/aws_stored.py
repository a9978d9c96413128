"""Reading a presigned S3 address, such as pcluster gives for a cluster's configuration."""

from __future__ import annotations

import urllib.error
import urllib.request

from toolkit.errors import ToolkitError

LARGEST = 10_000_000  # bytes; a configuration has some thousand


def read_url(url: str, what: str) -> str:
    """The text behind `url`; ToolkitError, without the address, which holds a signature."""
    if not url.startswith(("https://", "http://")):
        raise ToolkitError(f"{what} can't be read: pcluster names no web address for it.")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return str(answer.read(LARGEST).decode("utf-8"))
    except (OSError, ValueError) as error:
        told = error.reason if isinstance(error, urllib.error.URLError) else type(error).__name__
        raise ToolkitError(
            f"{what} can't be read from S3: {told}.",
            next_step="these credentials need s3:GetObject on pcluster's bucket, "
            "parallelcluster-*-do-not-delete",
        ) from None
