"""What is told of boto3's failures: never a password, a key or a signature that their words quote."""

from __future__ import annotations

import pytest
from botocore import exceptions as aws

from toolkit.errors import ToolkitError
from toolkit.remote.aws_session import aws_errors, client

URLS = (
    "http://ops:hunter2@127.0.0.1:9",
    "https://ops:hunt@hunter2@127.0.0.1:9/path",
    "http://hunter2@127.0.0.1:9",
    "https://b.s3.amazonaws.com/k?X-Amz-Security-Token=hunter2&X-Amz-Signature=HUNTER2",
    "http://ops:hunter2/hunter2@127.0.0.1:9",
)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "failure",
    [
        lambda url: aws.EndpointConnectionError(endpoint_url=url),
        lambda url: aws.ProxyConnectionError(proxy_url=url),
        lambda url: aws.HTTPClientError(error=url),
        lambda url: aws.CredentialRetrievalError(provider="process", error_msg=url),
        lambda url: aws.ClientError({"Error": {"Code": "X", "Message": f"at {url}"}}, "GetObject"),
    ],
)
def test_no_secret_of_an_url_is_told(failure: object, url: str) -> None:
    assert callable(failure)
    with pytest.raises(ToolkitError) as told, aws_errors("reading x"):
        raise failure(url)
    assert "hunter2" not in str(told.value).lower()
    assert told.value.next_step


def test_what_is_no_secret_stays() -> None:
    with pytest.raises(ToolkitError, match=r"https://ec2\.ap-south-1\.amazonaws\.com/"), aws_errors("x"):
        raise aws.EndpointConnectionError(endpoint_url="https://ec2.ap-south-1.amazonaws.com/")


@pytest.mark.parametrize("url", ["http://ops:hunter2@", "ops:hunter2@host", "http://ops:hunter2/x@h:1"])
def test_an_endpoint_that_is_no_url_is_told_without_it(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ToolkitError) as told, aws_errors("asking"):
        client("sts", "ap-south-1").get_caller_identity()
    assert "hunter2" not in str(told.value)
