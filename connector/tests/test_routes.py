"""Who may ask the lease routes, and what they may send."""

import json

import pytest

from pd_connector import routes
from pd_connector.routes import RefusedRequestError, check_client, merge, read_names


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_without_a_secret_loopback_may_ask(host: str) -> None:
    check_client(None, None, host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "", None, "localhost"])
def test_without_a_secret_nobody_else_may(host: str | None) -> None:
    with pytest.raises(RefusedRequestError) as error:
        check_client(None, "Bearer anything", host)
    assert error.value.status == 403


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", "Basic right", "right", "Bearer ä"])
def test_with_a_secret_it_must_be_right_also_from_loopback(given: str | None) -> None:
    with pytest.raises(RefusedRequestError) as error:
        check_client(b"right", given, "127.0.0.1")
    assert error.value.status == 401


def test_with_the_secret_from_anywhere() -> None:
    check_client(b"right", "Bearer right", "10.0.0.1")
    check_client(b"right", "bearer  right", None)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"null", 400),
        (b"[" * 100_000, 400),
        (b'{"leases": "a"}', 400),
        (b'{"leases": [1]}', 400),
        (b'{"leases": [""]}', 400),
        (json.dumps({"leases": ["a" * 65]}).encode(), 400),
        (json.dumps({"leases": ["a"] * 1025}).encode(), 400),
        (b" " * (routes.MOST_BYTES + 1), 413),
    ],
    ids=range(9),
)
def test_what_is_no_list_of_names_is_refused(body: bytes, status: int) -> None:
    with pytest.raises(RefusedRequestError) as error:
        read_names(body)
    assert error.value.status == status


def test_names_are_read() -> None:
    assert read_names(b'{"leases": ["a", "b"], "more": 1}') == ["a", "b"]


def test_answers_of_several_engines_are_one() -> None:
    unknown = {"ok": False, "state": "unknown"}
    held = {"ok": True, "state": "held"}
    assert merge([{"a": unknown, "b": held}, {"a": held, "b": unknown}]) == {"a": held, "b": held}
    assert merge([{"held": 2}, {"held": 3}]) == {"held": 5}
