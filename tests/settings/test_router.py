"""Settings of the router that depend on each other or name a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.settings.load import Loaded

Read = Callable[..., Loaded]
Refusal = Callable[..., str]
SECRET = "router.lease_secret_file=/shared/secret"


def test_defaults_need_no_secret_and_hold_nothing_longer(read: Read) -> None:
    router = read().deployment.router
    assert (router.path, router.decode_local_tokens, router.keep_map) == ("auto", 512, False)
    assert (router.lease_hold, router.lease_secret_file) == (None, None)
    assert (router.max_concurrent, router.queue_timeout) == (1024, 30)


def test_every_value_can_be_given(read: Read) -> None:
    router = read(
        "router:\n  path: decode-local\n  decode_local_tokens: 0\n  lease_hold: 3600\n"
        "  lease_secret_file: /shared/secret\n  keep_map: true\n  max_concurrent: 5\n  queue_timeout: 0.5\n"
    ).deployment.router
    assert (router.path, router.decode_local_tokens, router.keep_map) == ("decode-local", 0, True)
    assert (router.lease_hold, router.lease_secret_file) == (3600, Path("/shared/secret"))
    assert (router.max_concurrent, router.queue_timeout) == (5, 0.5)


@pytest.mark.parametrize("nothing", ["null", "~"])
@pytest.mark.parametrize("key", ["lease_hold", "lease_secret_file"])
def test_what_may_be_missing_may_be_null(read: Read, key: str, nothing: str) -> None:
    assert getattr(read(f"router:\n  {key}: {nothing}\n").deployment.router, key) is None


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("path=fastest", "should be 'auto', 'prefill', 'readback' or 'decode-local'"),
        ("decode_local_tokens=-1", "greater than or equal to 0"),
        ("decode_local_tokens=1.5", "a valid integer"),
        ("decode_local_tokens=auto", "a valid integer"),
        ("lease_hold=0", "greater than 0"),
        ("lease_hold=true", "a valid number"),
        ("lease_secret_file=secret", "must be an absolute path on the cluster's nodes"),
        ("lease_secret_file=~/secret", "must be an absolute path on the cluster's nodes"),
        ('lease_secret_file=""', "must not be empty"),
        ("keep_map=5", "a valid boolean"),
        ("max_concurrent=0", "greater than or equal to 1"),
        ("queue_timeout=0", "greater than 0"),
    ],
)
def test_a_value_that_cannot_work_is_named(assignment: str, problem: str, refusal: Refusal) -> None:
    message = refusal("", f"router.{assignment}")
    assert f"router.{assignment.partition('=')[0]}" in message
    assert problem in message


@pytest.mark.parametrize("hold", [90, 450])
def test_leases_that_are_held_are_held_longer_than_handles(hold: int, refusal: Refusal) -> None:
    message = refusal("", f"router.lease_hold={hold}", SECRET)
    assert f"lease_hold ({hold} s) must be above ttl (450 s)" in message
    assert "router.lease_hold: --set router.lease_hold; router.ttl: default" in message


def test_leases_are_held_with_a_secret_only(refusal: Refusal, read: Read) -> None:
    message = refusal("", "router.lease_hold=3600")
    assert "lease_hold needs lease_secret_file" in message
    assert "router.lease_secret_file: default" in message
    assert read("", "router.lease_hold=3600", SECRET).deployment.router.lease_hold == 3600
