"""Which bucket policies refuse an object that is encrypted with S3's own key."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.plan.bucket_policy import denies_sse_s3

SSE, KEY = "s3:x-amz-server-side-encryption", "s3:x-amz-server-side-encryption-aws-kms-key-id"
ARN = "arn:aws:kms:ap-south-1:123456789012:key/1"


def policy(condition: Any, **changes: Any) -> dict[str, Any]:
    statement = {
        "Sid": "Kms",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:PutObject",
        "Resource": "arn:aws:s3:::mine/*",
        "Condition": condition,
    }
    return {"Version": "2012-10-17", "Statement": [{**statement, **changes}]}


@pytest.mark.parametrize(
    "condition",
    [
        {"StringNotEquals": {SSE: "aws:kms"}},
        {"StringNotEqualsIfExists": {SSE: ["aws:kms", "aws:kms:dsse"]}},
        {"StringNotLike": {SSE: "aws:kms*"}},
        {"StringEquals": {SSE: "AES256"}},
        {"StringNotEquals": {KEY: ARN}},
        {"ArnNotEquals": {KEY: ARN}},
        {"StringNotEqualsIfExists": {KEY: ARN}},
        {"Null": {KEY: "true"}},
        {"StringNotEquals": {SSE: "aws:kms"}, "Bool": {"aws:SecureTransport": "true"}},
    ],
)
@pytest.mark.parametrize(
    "changes", [{}, {"Action": ["s3:GetObject", "s3:Put*"], "Principal": {"AWS": "*"}}, {"Resource": "*"}]
)
def test_a_policy_that_wants_a_kms_key_refuses_ours(condition: Any, changes: Any) -> None:
    assert denies_sse_s3(policy(condition, **changes), "mine") == "Kms"


@pytest.mark.parametrize(
    ("condition", "changes"),
    [
        ({"Bool": {"aws:SecureTransport": "false"}}, {}),
        ({"StringNotEquals": {SSE: "AES256"}}, {}),
        ({"Null": {SSE: "true"}}, {}),
        # Who that is, or where from, only S3 can tell.
        (
            {
                "StringNotEquals": {SSE: "aws:kms"},
                "StringLike": {"aws:PrincipalArn": "arn:aws:iam::1:role/x"},
            },
            {},
        ),
        ({"StringNotEquals": {SSE: "aws:kms"}}, {"Principal": {"AWS": "arn:aws:iam::1:role/x"}}),
        ({"StringNotEquals": {SSE: "aws:kms"}}, {"Resource": "arn:aws:s3:::mine/secret/*"}),
        ({"StringNotEquals": {SSE: "aws:kms"}}, {"Action": "s3:GetObject"}),
        ({"StringNotEquals": {SSE: "aws:kms"}}, {"Effect": "Allow"}),
    ],
)
def test_a_policy_that_does_not_surely_refuse_ours_is_left_to_s3(condition: Any, changes: Any) -> None:
    assert denies_sse_s3(policy(condition, **changes), "mine") is None


def test_a_policy_of_one_statement_need_not_be_a_list() -> None:
    (statement,) = policy({"Null": {KEY: "true"}}, Sid=None)["Statement"]
    assert denies_sse_s3({"Statement": statement}, "mine") == "number 1"
