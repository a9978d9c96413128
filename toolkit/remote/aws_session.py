"""AWS's API by boto3: clients, and every failure told as a ToolkitError. Seam of all modules remote/aws_*.

Credentials come from boto3's own chain (environment, profile, role); no text made here holds one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore import exceptions as aws
from botocore.config import Config
from botocore.parsers import ResponseParserError

from toolkit.errors import ToolkitError
from toolkit.remote.masked import masked

_LONGEST = 300
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_UNKNOWN_KEY = (
    *("InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure", "InvalidAccessKeyId"),
    *("SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature"),
)
_REFUSED = (
    *("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError", "403"),
    "NotAuthorized",
)
_THROTTLED = (
    *("Throttling", "ThrottlingException", "RequestLimitExceeded", "SlowDown", "TooManyRequestsException"),
    "RequestThrottled",
)
_UNREACHABLE = (
    aws.EndpointConnectionError,
    aws.ConnectionError,
    aws.HTTPClientError,
)
_LOG_IN = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with `aws sso login`; "
    "`aws sts get-caller-identity` shows whether it works, if the region is enabled for the account"
)


class AwsAnswer(ToolkitError):
    """AWS was reached and answered with an error. `refused`: these credentials may not do it."""

    def __init__(self, what: str, *, next_step: str, code: str, refused: bool = False) -> None:
        super().__init__(what, next_step=next_step)
        self.code = code
        self.refused = refused


def client(service: str, region: str) -> Any:
    """boto3's client of `service`, with timeouts of seconds and a few retries."""
    config = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "max_attempts": 4})
    doing = f"opening {service} in {region}"
    try:
        with aws_errors(doing):
            made = _session(_surroundings()).client(service, region_name=region, config=config)
        _ = urlsplit(made.meta.endpoint_url).port
    except ValueError:
        # botocore's word, or urllib's, for an endpoint that is no URL; it quotes it, with its password.
        raise ToolkitError(
            f"{doing}: the endpoint of AWS_ENDPOINT_URL (or of the profile) is no URL",
            next_step="correct AWS_ENDPOINT_URL, such as http://127.0.0.1:5000",
        ) from None
    return made


@contextmanager
def aws_errors(doing: str) -> Iterator[None]:
    """Raises ToolkitError for whatever botocore raises; AwsAnswer where AWS itself refused or failed.

    `doing`: what the call is for, such as `reading subnet subnet-0123`.
    """
    try:
        yield
    except aws.ClientError as error:
        raise _answer(doing, error) from None
    except (aws.NoCredentialsError, aws.PartialCredentialsError, aws.CredentialRetrievalError) as error:
        raise ToolkitError(
            f"{doing}: no usable AWS credentials ({_words(error)})", next_step=_LOG_IN
        ) from None
    except (aws.TokenRetrievalError, aws.SSOError, aws.UnauthorizedSSOTokenError) as error:
        raise ToolkitError(
            f"{doing}: the AWS login has ended ({_words(error)})", next_step="`aws sso login`, then again"
        ) from None
    except aws.ProfileNotFound as error:
        raise ToolkitError(
            f"{doing}: {_words(error)}",
            next_step="set AWS_PROFILE to one that `aws configure list-profiles` shows",
        ) from None
    except (aws.NoRegionError, aws.InvalidRegionError) as error:
        raise ToolkitError(f"{doing}: {_words(error)}", next_step="correct target.region") from None
    except _UNREACHABLE as error:
        raise ToolkitError(
            f"{doing}: AWS can't be reached ({_words(error)})",
            next_step="check target.region's spelling, the network, HTTPS_PROXY and AWS_ENDPOINT_URL",
        ) from None
    except ResponseParserError as error:
        raise ToolkitError(
            f"{doing}: the answer is not one of AWS ({_words(error)})",
            next_step="check AWS_ENDPOINT_URL and HTTPS_PROXY: something else answers; else try again",
        ) from None
    except aws.BotoCoreError as error:
        raise ToolkitError(f"{doing}: {_words(error)}", next_step=_LOG_IN) from None


def _answer(doing: str, error: aws.ClientError) -> ToolkitError:
    """AwsAnswer, but for credentials that serve for nothing."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    words = _words(error.response.get("Error", {}).get("Message") or code)
    if code in _EXPIRED:
        return ToolkitError(f"{doing}: the AWS session has expired", next_step=_LOG_IN)
    if code in _UNKNOWN_KEY:
        return ToolkitError(f"{doing}: AWS does not accept the credentials ({code})", next_step=_LOG_IN)
    if code in _REFUSED:
        action = _action(words) or error.operation_name
        return AwsAnswer(
            f"{doing}: these credentials may not do {action}",
            next_step=f"use credentials with a policy that allows {action}",
            code=code,
            refused=True,
        )
    if code in _THROTTLED:
        return AwsAnswer(f"{doing}: AWS asks to slow down ({code})", next_step="wait a minute", code=code)
    if code in ("OptInRequired", "SubscriptionRequiredException"):
        return AwsAnswer(
            f"{doing}: the account is not signed up for this ({words})",
            next_step="enable the region or service in the AWS account",
            code=code,
        )
    return AwsAnswer(
        f"{doing}: AWS answers {code} to {error.operation_name}: {words}",
        next_step="correct what it names, or try again if it says so",
        code=code,
    )


def _action(words: str) -> str | None:
    """`ec2:DescribeSubnets` of `... is not authorized to perform: ec2:DescribeSubnets ...`."""
    found = re.search(r"perform:? ([a-z0-9-]+:[A-Za-z]+)", words)
    return found[1] if found else None


def _words(said: object) -> str:
    """AWS's own words in one short line, without secrets and without encoded blobs."""
    text = " ".join(str(said).split())
    text = text.partition("Encoded authorization failure message")[0].strip()
    text = masked(text)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _surroundings() -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))


@lru_cache(maxsize=1)
def _session(surroundings: tuple[tuple[str, str], ...]) -> boto3.session.Session:  # noqa: ARG001
    """One session while the environment stays, so that a role is assumed and a code asked for once."""
    return boto3.session.Session()
