"""Whether a bucket's policy lets objects in that are encrypted with S3's own key (SSE-S3, AES256). Pure.

Nodes have no right to a customer's KMS key, so our objects are stored so whatever the bucket's default. Only
a statement that surely denies it counts; where a condition is about something else, S3 has to tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

# What PutObject says with ServerSideEncryption=AES256; a key of S3's that is not here is not in the request.
REQUEST = {"s3:x-amz-server-side-encryption": "AES256", "aws:securetransport": "true"}
ENCRYPTION_KEYS = "s3:x-amz-server-side-encryption"
EQUAL = ("StringEquals", "StringEqualsIgnoreCase", "StringLike", "ArnEquals", "ArnLike", "Bool")
UNEQUAL = ("StringNotEquals", "StringNotEqualsIgnoreCase", "StringNotLike", "ArnNotEquals", "ArnNotLike")


def denies_sse_s3(policy: Mapping[str, Any], bucket: str) -> str | None:
    """The statement that denies everybody such an object, by its Sid; None if there is none."""
    for number, statement in enumerate(_many(policy.get("Statement", ())), 1):
        if _denies_all(statement, bucket) and _applies(statement.get("Condition", {})):
            return str(statement.get("Sid") or f"number {number}")
    return None


def _denies_all(statement: Mapping[str, Any], bucket: str) -> bool:
    principal = statement.get("Principal")
    everybody = "*" in _many(principal.get("AWS", ()) if isinstance(principal, Mapping) else principal)
    actions = [str(each).lower() for each in _many(statement.get("Action"))]
    resources = [str(each).rpartition(":::")[2] for each in _many(statement.get("Resource"))]
    return (
        statement.get("Effect") == "Deny"
        and everybody
        and any(fnmatchcase("s3:putobject", each) for each in actions)
        and any(each in ("*", f"{bucket}*", f"{bucket}/*") for each in resources)
    )


def _applies(condition: Mapping[str, Mapping[str, Any]]) -> bool:
    """Every test of it surely holds for our request, and one at least is about encryption."""
    tests = [
        (word, key.lower(), _many(values)) for word, each in condition.items() for key, values in each.items()
    ]
    about = any(key.startswith(ENCRYPTION_KEYS) for _, key, _ in tests)
    return about and all(_holds(word, key, [str(value) for value in values]) for word, key, values in tests)


def _holds(word: str, key: str, values: Sequence[str]) -> bool:
    if key not in REQUEST and not key.startswith(ENCRYPTION_KEYS):
        return False
    has = REQUEST.get(key)
    if word == "Null":
        return (has is None) == (values[0].lower() == "true")
    operator = word.removesuffix("IfExists")
    if has is None:
        # IAM: a negated test holds for a key that is not there, and so does every ...IfExists.
        return operator in UNEQUAL or (operator in EQUAL and word != operator)
    equal = any(fnmatchcase(has.lower(), value.lower()) for value in values)
    return equal if operator in EQUAL else operator in UNEQUAL and not equal


def _many(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
