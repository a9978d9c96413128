"""Checks of a changing set of engines, and what failing requests do."""

import asyncio
import logging

import pytest

from toolkit.router.fleet.health import FIRST_AWAY_S, LONGEST_AWAY_S, HealthWatch, health_check
from toolkit.router.fleet.legs import Leg, Pool

pytestmark = pytest.mark.asyncio


def pool(count):
    return Pool("decode", [f"http://d{number}" for number in range(count)])


def watch_over(legs, check=None, **options):
    async def good(_):
        return True

    settings = {"interval_s": 0.001, "eject_after": 2, **options}
    return HealthWatch(lambda: legs.legs, check or good, **settings)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_the_first_round_ends_before_the_start_does():
    legs = pool(2)
    answers = {"http://d0": True, "http://d1": False}
    rounds = []

    async def check(leg):
        await asyncio.sleep(0)
        return answers[leg.url]

    watch = watch_over(legs, check, on_round=lambda: rounds.append(1))
    await watch.start()
    assert [leg.healthy for leg in legs.legs] == [True, False]
    answers["http://d1"] = True
    await until(lambda: legs.legs[1].healthy)
    answers["http://d0"] = False
    await until(lambda: not legs.legs[0].healthy)
    await watch.stop()
    assert len(rounds) >= 3


async def test_legs_that_come_are_checked_and_those_that_left_are_not_revived():
    legs = pool(1)
    asked = asyncio.Event()
    go_on = asyncio.Event()

    async def check(leg):
        if leg.url == "http://new" and not go_on.is_set():
            asked.set()
            await go_on.wait()
        return True

    watch = watch_over(legs, check)
    await watch.start()
    new = legs.add("http://new")
    await asked.wait()
    legs.remove("http://new")
    go_on.set()
    await asyncio.sleep(0.01)
    assert not new.healthy
    again = legs.add("http://new")
    await until(lambda: again.healthy)
    await watch.stop()


async def test_an_engine_that_does_not_answer_keeps_no_other_waiting():
    legs = pool(2)
    for leg in legs.legs:
        leg.healthy = True
    asked = []
    started = False

    async def check(leg):
        asked.append(leg.url)
        if leg.url == "http://d0" and started:
            await asyncio.Event().wait()
        return True

    watch = watch_over(legs, check)
    await watch.start()
    started = True
    await until(lambda: asked.count("http://d1") > 5)
    await watch.stop()
    assert asked.count("http://d0") <= 3


async def test_a_check_that_fails_inside_the_router_is_a_bad_one_and_logged(caplog):
    legs = pool(1)
    legs.legs[0].healthy = True

    async def check(_):
        raise ZeroDivisionError

    watch = watch_over(legs, check, eject_after=1)
    await watch.start()
    await watch.stop()
    assert not legs.legs[0].healthy
    assert "the health check of decode http://d0 failed inside the router" in caplog.text


async def test_health_is_a_200_from_the_engine_in_time(engines):
    leg = Leg("prefill", "http://d")
    check = health_check(engines, 3.0)
    for said, healthy in ((200, True), (503, False), (404, False), ("did not answer in time", False)):
        engines.says["http://d", "/health"] = said
        assert await check(leg) is healthy
    assert {asked[1:3] for asked in engines.asked} == {("GET", "/health")}


@pytest.mark.parametrize(
    ("url", "said", "told"),
    [
        ("http://d", "cannot be reached (connection refused)", "it cannot be reached (connection refused)"),
        ("http://d/v1", 404, "it answered 404 to GET /v1/health"),
    ],
)
async def test_an_engine_that_never_gets_healthy_is_told_of_once_with_its_cause(
    engines, caplog, url, said, told
):
    leg = Leg("prefill", url)
    check = health_check(engines, 3.0)
    engines.says[url, "/health"] = said
    for _ in range(5):
        leg.note_check(await check(leg), 3)
    assert caplog.messages == [f"prefill {url} does not pass its health check: {told}"]


@pytest.mark.parametrize(
    ("said", "offers"), [(200, True), (401, True), (403, True), (404, False), (405, False), (500, False)]
)
async def test_a_decode_leg_that_comes_is_asked_once_for_its_lease_routes(engines, said, offers):
    leg = Leg("decode", "http://d")
    check = health_check(engines, 3.0)
    engines.says["http://d", "/pd/leases"] = said
    leg.note_check(await check(leg), 2)
    assert (leg.healthy, leg.offers_leases) == (True, offers)
    assert await check(leg)
    assert [asked[2] for asked in engines.asked] == ["/health", "/pd/leases", "/health"]


async def test_a_decode_leg_that_came_back_may_be_another_one(engines):
    leg = Leg("decode", "http://d")
    check = health_check(engines, 3.0)
    leg.note_check(await check(leg), 2)
    leg.eject()
    engines.says["http://d", "/pd/leases"] = 404
    leg.note_check(await check(leg), 2)
    assert (leg.healthy, leg.offers_leases) == (True, False)


def all_healthy(count):
    legs = pool(count)
    for leg in legs.legs:
        leg.healthy = True
    return legs


async def test_failing_requests_in_a_row_take_a_leg_out_and_others_do_not():
    legs = all_healthy(2)
    leg = legs.legs[0]
    watch = watch_over(legs, eject_after=3)
    for step in ("failed", "failed", "answered", "failed", "failed"):
        getattr(watch, step)(leg)
        assert leg.healthy
    watch.failed(leg)
    assert not leg.healthy


async def test_it_comes_back_at_the_next_good_check_after_a_while_that_doubles(clock):
    legs = all_healthy(2)
    leg = legs.legs[0]
    # One round per start: the test says when.
    watch = watch_over(legs, eject_after=1, clock=clock, interval_s=1e6)

    async def comes_back_after(seconds):
        watch.failed(leg)
        assert not leg.healthy
        clock.now += seconds - 0.01
        await watch.start()
        await watch.stop()
        assert not leg.healthy, "too early"
        clock.now += 0.02
        await watch.start()
        await watch.stop()
        assert leg.healthy

    for seconds in (5, 10, 20, 40, 60, 60):
        await comes_back_after(seconds)
    clock.now += 2 * LONGEST_AWAY_S + 1
    await comes_back_after(FIRST_AWAY_S)


async def test_failures_from_before_it_was_away_count_no_more():
    legs = all_healthy(2)
    leg = legs.legs[0]
    watch = watch_over(legs, eject_after=2)
    leg.eject()
    for _ in range(5):
        watch.failed(leg)
    await watch.start()
    await watch.stop()
    watch.failed(leg)
    assert leg.healthy
    watch.failed(leg)
    assert not leg.healthy


async def test_a_leg_that_cannot_be_reached_comes_back_without_waiting():
    legs = all_healthy(2)
    legs.legs[0].eject()
    watch = watch_over(legs)
    await watch.start()
    await watch.stop()
    assert legs.legs[0].healthy


async def test_one_that_has_to_stay_away_comes_back_early_where_it_is_the_only_one_left(clock):
    legs = all_healthy(2)
    failing, other = legs.legs

    async def check(leg):
        return leg is failing

    watch = watch_over(legs, check, eject_after=1, clock=clock, interval_s=1e6)
    watch.failed(failing)
    assert not failing.healthy
    other.eject()
    await watch.start()
    await watch.stop()
    assert [failing.healthy, other.healthy] == [True, False]


@pytest.mark.parametrize("others", ["none", "unhealthy", "draining", "another role"])
async def test_requests_that_break_every_engine_leave_the_last_one(others):
    legs = all_healthy(1 if others in ("none", "another role") else 2)
    known = list(legs.legs)
    if others == "another role":
        known.append(Leg("prefill", "http://p"))
        known[-1].healthy = True
    elif others != "none":
        legs.legs[1].healthy = others == "draining"
        legs.legs[1].draining = others == "draining"
    watch = HealthWatch(lambda: known, health_check(None, 1.0), interval_s=1, eject_after=1)
    for _ in range(10):
        watch.failed(legs.legs[0])
    assert legs.legs[0].healthy


@pytest.mark.parametrize(("alone", "decode_healthy"), [(True, True), (True, False), (False, True)])
async def test_the_last_prefill_leg_goes_only_where_decode_computes_alone(alone, decode_healthy):
    prefill, decode = Leg("prefill", "http://p"), Leg("decode", "http://d")
    prefill.healthy, decode.healthy = True, decode_healthy
    watch = HealthWatch(
        lambda: [prefill, decode],
        health_check(None, 1.0),
        interval_s=1,
        eject_after=1,
        decode_alone=alone,
    )
    for leg in (decode, prefill):
        watch.failed(leg)
    assert prefill.healthy is not (alone and decode_healthy)
    assert decode.healthy is decode_healthy


async def test_how_long_it_stays_away_is_told(caplog):
    legs = all_healthy(2)
    watch_over(legs, eject_after=1).failed(legs.legs[0])
    assert f"until its next good health check after {FIRST_AWAY_S:g} s" in caplog.text


async def test_a_new_engine_behind_a_leg_is_told_once(caplog):
    legs = all_healthy(2)
    leg, other = legs.legs
    told = []
    watch = watch_over(legs, on_restart=told.append)
    for engine in ("d+11111111", "d+11111111"):
        watch.saw_engine(leg, engine)
    watch.saw_engine(other, "d+22222222")
    assert told == []
    watch.saw_engine(leg, "d+33333333")
    watch.saw_engine(leg, "d+33333333")
    assert told == [leg]
    assert leg.generation == "d+33333333"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_the_ranks_of_one_data_parallel_engine_are_one_start():
    legs = all_healthy(1)
    told = []
    watch = watch_over(legs, on_restart=told.append)
    for engine in ("d+11111111_dp0", "d+11111111_dp1", "d+11111111_dp12", "d+11111111_dp0"):
        watch.saw_engine(legs.legs[0], engine)
    assert told == []
    watch.saw_engine(legs.legs[0], "d+22222222_dp1")
    assert told == legs.legs
