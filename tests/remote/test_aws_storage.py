"""What S3's answers to a HEAD of a bucket are taken for; a HEAD has no body, so only the status tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from toolkit.plan.aws_facts import Bucket, Forbidden, Unknown
from toolkit.remote.aws_storage import StorageReader

REGION = "ap-south-1"


@contextmanager
def answering(status: int, region: str | None) -> Iterator[str]:
    """An S3 that answers every request with this status and, if given, the bucket's region."""

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            if region:
                self.send_header("x-amz-bucket-region", region)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str | None], object]:
    def ask(status: int, region: str | None) -> object:
        with answering(status, region) as address:
            monkeypatch.setenv("AWS_ENDPOINT_URL", address)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
            return StorageReader(REGION, "123456789012", None).buckets(["mine"], ours="mine")["mine"]

    return ask


@pytest.mark.parametrize(
    ("status", "region", "taken_for"),
    [
        (200, REGION, Bucket("mine", REGION)),
        (200, "us-east-1", Bucket("mine", "us-east-1")),
        (301, "eu-west-1", Bucket("mine", "another region")),
        (403, None, Forbidden("mine")),
        (404, None, None),
    ],
)
def test_what_a_status_says(
    head: Callable[[int, str | None], object], status: int, region: str | None, taken_for: object
) -> None:
    assert head(status, region) == taken_for


@pytest.mark.parametrize("status", [400, 405, 409])
def test_what_says_nothing_of_the_bucket_is_unknown(
    head: Callable[[int, str | None], object], status: int
) -> None:
    """S3 answers 400 to worn-out credentials and to a name it does not take: neither is another region."""
    found = head(status, None)
    assert isinstance(found, Unknown)
    assert str(status) in found.reason
