"""How a deployment's router settings become the router's command line and decode's environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from toolkit.plan.run import RunPlan, places_of, plan_run
from toolkit.settings.deployment import Deployment

Deployments = Callable[..., Deployment]
BASE = Path("/home/user/pd")
SECRET = "router.lease_secret_file=/shared/secret"


def plan_of(settings: Deployment) -> RunPlan:
    return plan_run(settings, "r", PurePosixPath("/shared/runs"), places_of(settings, BASE, BASE / "python"))


def options(plan: RunPlan) -> dict[str, str | None]:
    """The router's options by name; None for one without a value."""
    found: dict[str, str | None] = {}
    for word in plan.router.arguments:
        if word.startswith("--"):
            found[word] = None
        else:
            found[list(found)[-1]] = word
    return found


USUAL: dict[str, str | None] = {
    "--host": "0.0.0.0",
    "--port": "8000",
    "--path": "auto",
    "--decode-local-tokens": "512",
    "--ttl": "450",
    "--no-claim": None,
    "--max-concurrent": "1024",
    "--queue-timeout": "30",
    "--access-log": "/shared/runs/r/logs/access.log",
}


def test_a_router_without_a_secret_claims_nothing(deployment: Deployments) -> None:
    assert options(plan_of(deployment("embedded"))) == USUAL


@pytest.mark.parametrize(
    ("assignment", "option", "value"),
    [
        ("port=9000", "--port", "9000"),
        ("ttl=0.5", "--ttl", "0.5"),
        ("path=readback", "--path", "readback"),
        ("decode_local_tokens=0", "--decode-local-tokens", "0"),
        ("keep_map=true", "--map-file", "/shared/runs/r/conversations.sqlite"),
        ("max_concurrent=7", "--max-concurrent", "7"),
        ("queue_timeout=2.5", "--queue-timeout", "2.5"),
    ],
)
def test_a_setting_changes_its_option_only(
    assignment: str, option: str, value: str, deployment: Deployments
) -> None:
    assert options(plan_of(deployment("embedded", f"router.{assignment}"))) == {**USUAL, option: value}


def test_the_secrets_file_goes_to_the_router_and_to_all_engines(deployment: Deployments) -> None:
    usual = plan_of(deployment("embedded", "legs.decode.replicas=2"))
    plan = plan_of(deployment("embedded", "legs.decode.replicas=2", SECRET, "router.lease_hold=3600"))
    expected = {**USUAL, "--lease-secret-file": "/shared/secret", "--lease-hold": "3600"}
    del expected["--no-claim"]
    assert options(plan) == expected
    for job, before in zip(plan.engines, usual.engines, strict=True):
        added = set(job.environment) - set(before.environment)
        assert added == {("PD_LEASE_SECRET_FILE", "/shared/secret")}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_legs_own_variable_goes_first(deployment: Deployments, role: str) -> None:
    plan = plan_of(deployment("embedded", SECRET, f"legs.{role}.env.PD_LEASE_SECRET_FILE=/node/secret"))
    for job in plan.engines:
        files = [value for name, value in job.environment if name == "PD_LEASE_SECRET_FILE"]
        assert files == ["/node/secret" if job.role == role else "/shared/secret"]
