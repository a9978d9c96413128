"""Texts of AWS's tools without the secrets that they may quote; what is shown of them goes through here."""

from __future__ import annotations

import re

_SECRETS = (
    # user:password of an endpoint or proxy; up to the last @, since a password may hold one.
    (re.compile(r"\b((?:https?|ftp|socks[45]h?)://)[^\s\"'<>]*@", re.IGNORECASE), r"\1***@"),
    # A presigned URL's parameters are as good as the credentials that signed it.
    (re.compile(r"\b(X-Amz-(?:Security-Token|Signature|Credential)=)[^\s&\"'<>]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"\b(AWSAccessKeyId=|(?<=[?&])Signature=)[^\s&\"'<>]+"), r"\1***"),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{12,}"), r"\1..."),
)


def masked(text: str) -> str:
    """`text` without user names and passwords of URLs, signatures of presigned ones, and access keys."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text
