"""Pools and settings, without HTTP."""

import asyncio

import pytest

from toolkit.errors import SettingsError
from toolkit.router.config import RouterConfig
from toolkit.router.engines import HealthWatch, Pool


def pool(*healthy):
    made = Pool("decode", [f"http://d{number}" for number in range(len(healthy))])
    for leg, state in zip(made.legs, healthy, strict=True):
        leg.healthy = state
    return made


def test_healthy_legs_take_turns_and_others_get_nothing():
    legs = pool(True, False, True)
    picked = [legs.pick().url for _ in range(4)]
    assert sorted(picked) == ["http://d0", "http://d0", "http://d2", "http://d2"]
    assert picked[0] != picked[1]
    assert pool(False, False).pick() is None


def test_a_preferred_leg_is_taken_while_it_is_healthy():
    legs = pool(True, True)
    assert {legs.pick(prefer="http://d1").url for _ in range(3)} == {"http://d1"}
    assert legs.pick(prefer="http://d1", exclude=(legs.legs[1],)).url == "http://d0"
    legs.legs[1].healthy = False
    assert legs.pick(prefer="http://d1").url == "http://d0"


def test_ejection_takes_several_bad_checks_and_one_good_check_ends_it():
    (leg,) = pool(True).legs
    leg.note_check(False, 2)
    assert leg.healthy
    leg.note_check(False, 2)
    assert not leg.healthy
    leg.note_check(True, 2)
    leg.note_check(False, 2)
    assert leg.healthy


def test_the_watch_checks_before_it_is_started_and_again_later():
    legs = pool(False, False)
    rounds = []
    answers = {"http://d0": True, "http://d1": False}

    async def check(leg):
        return answers[leg.url]

    async def run():
        second = asyncio.Event()

        def on_round():
            rounds.append([leg.healthy for leg in legs.legs])
            answers["http://d1"] = True
            if len(rounds) == 2:
                second.set()

        watch = HealthWatch(legs.legs, check, interval_s=0.001, eject_after=1, on_round=on_round)
        await watch.start()
        await second.wait()
        await watch.stop()

    asyncio.run(run())
    assert rounds[:2] == [[True, False], [True, True]]


@pytest.mark.parametrize(
    "bad",
    [
        {"prefill": ()},
        {"decode": ()},
        {"prefill": ("10.0.0.1:8100",)},
        {"decode": ("ftp://h:1",)},
        {"decode": ("http://user:secret@h:1",)},
        {"decode": ("http://h:port",)},
        {"decode": ("http://h:0",)},
        {"decode": ("http://h:1?x=1",)},
        {"port": 70000},
        {"ttl_s": 0.0},
        {"max_conversations": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(bad):
    with pytest.raises(SettingsError) as error:
        RouterConfig(**{"prefill": ("http://p:1",), "decode": ("http://d:1",), **bad})
    assert "secret" not in str(error.value)


def test_engine_urls_lose_their_last_slash():
    assert RouterConfig(prefill=("http://p:1/",), decode=("http://d:1/base/",)).decode == ("http://d:1/base",)
