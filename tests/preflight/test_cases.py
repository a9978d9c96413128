"""Every mistake of the table gives its message; a right cluster gives none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolkit.errors import SettingsError
from toolkit.plan.cluster import plan_cluster
from toolkit.preflight.check import CHECKS, check_name, raise_for
from toolkit.preflight.problem import Problem
from toolkit.settings.load import Loaded

Problems = Callable[[Any], tuple[Problem, ...]]


def the_one(case: Any, problems: tuple[Problem, ...]) -> Problem:
    found = [
        each
        for each in problems
        if (each.level, each.key) == (case.level, case.key) and case.reason in each.reason
    ]
    assert len(found) == 1, "\n".join(map(str, problems)) or "no problem at all"
    return found[0]


def test_a_mistake_is_told(case: Any, problems: Problems, settings: Callable[..., Loaded]) -> None:
    if case.refused:
        with pytest.raises(SettingsError) as refusal:
            plan_cluster(settings(*case.settings).deployment.target)  # type: ignore[arg-type]
        assert case.key in refusal.value.what
        assert case.reason in refusal.value.what
        assert case.next in refusal.value.next_step
        return
    found = the_one(case, problems(case))
    assert case.next in found.next_step
    assert found.is_error == (case.level == "error")
    text = str(found)
    assert text.startswith(f"{case.level}: ")
    assert text.count("\n") == 1


def test_the_source_of_the_value_is_told(make_case: Callable[..., Any], problems: Problems) -> None:
    found = problems(
        make_case("target.version=3.12.0", facts={"reservations": {"instance_type": "p5.48xlarge"}})
    )
    texts = [str(each) for each in found]
    assert any("target.version = 3.12.0 (--set target.version): " in text for text in texts)
    assert any(
        "target.capacity.reservation = cr-0123456789abcdef0 (file " in text and ", line " in text
        for text in texts
    )
    assert any("target.ssh.allowed_from = 0.0.0.0/0 (default): " in text for text in texts)


def test_a_place_in_a_list_has_the_source_of_the_list(
    make_case: Callable[..., Any], problems: Problems
) -> None:
    pools = "[{Name: login, Count: 1, Instance: c6i.large, Networking: {SubnetIds: none}}]"
    found = problems(make_case(f"target.overrides.LoginNodes.Pools={pools}", offline=True))
    assert {(each.key, each.where) for each in found if each.is_error} == {
        ("target.overrides.LoginNodes.Pools[0].Instance", "--set target.overrides.LoginNodes.Pools"),
        (
            "target.overrides.LoginNodes.Pools[0].Networking.SubnetIds",
            "--set target.overrides.LoginNodes.Pools",
        ),
    }


def test_an_odd_key_or_value_cannot_act_on_a_terminal(
    make_case: Callable[..., Any], problems: Problems
) -> None:
    case = make_case(offline=True, document={"Moni\x1b[2Jtoring": "a\x1b[2J\nb" + "x" * 500})
    (found,) = [each for each in problems(case) if each.check == "keys-known"]
    assert str(found).replace("\n", "", 1).isprintable()
    assert len(found.value) <= 80


@pytest.mark.parametrize("version", ["3.14.2", "3.16.1"])
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("target.capacity.placement_group=pd",),
        ("target.capacity.kind=capacity-block",),
        ("target.storage.file_system=fs-0123456789abcdef0",),
        ("target.network.security_groups=[sg-0123456789abcdef0]",),
        (
            "target.network.create=true",
            "target.network.head_subnet=null",
            "target.network.compute_subnet=null",
        ),
        ("target.scripts=[{script: 's3://mine/setup.sh', args: [a]}]",),
        ("target.overrides.HeadNode.Dcv={Enabled: true, Port: 8443, AllowedIps: 203.0.113.0/24}",),
    ],
)
def test_a_right_cluster_has_no_error(
    version: str, more: tuple[str, ...], make_case: Callable[..., Any], problems: Problems
) -> None:
    found = problems(make_case(f"target.version={version}", *more))
    assert [each.check for each in found] == ["ssh-from-everywhere"]
    raise_for(found, "pd")


def test_errors_come_first_and_once(make_case: Callable[..., Any], problems: Problems) -> None:
    found = problems(
        make_case(
            "target.network.security_groups=[sg-0123456789abcdef0, sg-0123456789abcdef0]",
            facts={"reservations": {"state": "expired", "criteria": "open"}, "security_groups": None},
        )
    )
    levels = [each.level for each in found]
    assert levels == sorted(levels)
    assert len(set(found)) == len(found)
    with pytest.raises(SettingsError) as refusal:
        raise_for(found, "pd")
    assert str(refusal.value).startswith(
        "2 things are wrong with cluster pd, so nothing was made or changed:"
    )
    assert "is open" not in str(refusal.value)


def test_a_running_cluster_holds_its_own(make_case: Callable[..., Any], updating: Problems) -> None:
    """On update its name is taken, its nodes are in the reservation, and they have their addresses."""
    facts = {
        "stack": {"is": "CREATE_COMPLETE"},
        "reservations": {"available": 0},
        "subnets.compute": {"free": 3},
    }
    assert [each.check for each in updating(make_case(facts=facts))] == ["ssh-from-everywhere"]


EVERY_FACT = (
    "target.capacity.placement_group=pd",
    "target.storage.file_system=fs-0123456789abcdef0",
    "target.network.security_groups=[sg-0123456789abcdef0]",
    "target.scripts=[{script: 's3://mine/setup.sh'}]",
)


@pytest.mark.parametrize(
    "kind",
    [
        *("stack", "subnets", "vpcs", "reservations", "placement_groups", "keys", "security_groups", "amis"),
        *("images", "file_systems", "buckets", "objects", "instance_types", "offered", "quotas"),
    ],
)
def test_what_cannot_be_read_is_never_silent(
    kind: str, make_case: Callable[..., Any], problems: Problems
) -> None:
    case = make_case(*EVERY_FACT, facts={kind: {"unread": f"no right to {kind}"}})
    found = [each for each in problems(case) if each.check == "not-checked"]
    assert len(found) == 1
    assert found[0].level == "warning"
    assert f"because no right to {kind}" in found[0].reason


def test_every_check_has_a_case(cases: list[Any], problems: Problems) -> None:
    hit = {the_one(case, problems(case)).check for case in cases if not case.refused}
    assert {check_name(check) for check in CHECKS} | {"not-checked"} == hit


def test_cases_differ(cases: list[Any]) -> None:
    assert len({case.mistake for case in cases}) == len(cases)


def test_40_tags_are_enough(make_case: Callable[..., Any], problems: Problems) -> None:
    def tags(count: int) -> str:
        return "target.tags={" + ", ".join(f"t{number}: a" for number in range(count)) + "}"

    assert not [each for each in problems(make_case(tags(40), offline=True)) if each.check == "tags"]
    (found,) = [each for each in problems(make_case(tags(41), offline=True)) if each.check == "tags"]
    assert found.is_error


def test_offline_asks_nothing(make_case: Callable[..., Any], problems: Problems) -> None:
    """The shipped example's ids exist nowhere, and its plan is checked all the same."""
    assert [each.check for each in problems(make_case(offline=True))] == ["ssh-from-everywhere"]
