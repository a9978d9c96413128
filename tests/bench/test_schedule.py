"""The schedule of a sweep: what it holds, and that OFF and ON hold the same."""

from __future__ import annotations

import json

import pytest

from toolkit.errors import SettingsError
from toolkit.plan.sweep import Schedule, plan_sweep
from toolkit.settings.deployment import Deployment

SETTINGS = Deployment.model_validate(
    {
        "name": "d",
        "target": {"kind": "embedded"},
        "model": {"name": "tiny", "served_name": "served", "max_model_len": 8192},
        "kv": {"stats_interval": 2},
        "sweep": {"prompt_lengths": [1024, 4096], "turns": 3, "repeats": 2, "output_tokens": 16, "seed": 7},
    }
)


def test_points_conversations_and_expected_rows() -> None:
    schedule = plan_sweep(SETTINGS, "off")
    assert [point.prompt_length for point in schedule.points] == [1024, 4096]
    assert [each.id for each in schedule.conversations] == ["1024-0", "1024-1", "4096-0", "4096-1"]
    assert schedule.expected_rows == 2 * 2 * 3
    assert schedule.settle_s == 5
    assert (schedule.model, schedule.output_tokens, schedule.turn_tokens) == ("served", 16, 128)


def test_off_and_on_hold_the_same_conversations() -> None:
    off, on = plan_sweep(SETTINGS, "off"), plan_sweep(SETTINGS, "on")
    assert off.points == on.points
    assert (off.leg, on.leg) == ("off", "on")


def test_seeds_differ_between_conversations_and_between_sweep_seeds() -> None:
    other = SETTINGS.model_copy(update={"sweep": SETTINGS.sweep.model_copy(update={"seed": 8})})
    seeds = [
        each.seed for settings in (SETTINGS, other) for each in plan_sweep(settings, "off").conversations
    ]
    assert len(set(seeds)) == 8


def test_json_and_back() -> None:
    schedule = plan_sweep(SETTINGS, "on")
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert json.loads(schedule.to_json())["leg"] == "on"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"leg": "both"}, "neither off nor on"),
        ({"expected_rows": 3}, "3 rows but holds 12"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_no_schedule(change: dict[str, object], says: str) -> None:
    data = json.loads(plan_sweep(SETTINGS, "on").to_json()) | change
    with pytest.raises(SettingsError, match=says):
        Schedule.from_json(json.dumps(data))


def test_text_that_is_no_json() -> None:
    with pytest.raises(SettingsError, match="not a sweep schedule"):
        Schedule.from_json("{")
