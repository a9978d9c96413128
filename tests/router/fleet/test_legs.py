"""Which engine a request goes to, and how engines come and leave."""

import itertools

import pytest

from toolkit.router.fleet.legs import Leg, Pool


def pool(count, on_gone=None):
    made = Pool("decode", [f"http://d{number}" for number in range(count)], on_gone)
    for leg in made.legs:
        leg.healthy = True
    return made


def test_equal_legs_take_turns_also_while_one_is_away():
    legs = pool(3)
    assert [legs.pick().url[-1] for _ in range(6)] == ["0", "1", "2", "0", "1", "2"]
    legs.legs[1].healthy = False
    assert [legs.pick().url[-1] for _ in range(4)] == ["0", "2", "0", "2"]


def test_the_leg_with_the_fewest_requests_is_taken():
    legs = pool(3)
    first, second, third = legs.legs
    with first.busy(), first.busy(), third.busy():
        assert {legs.pick() for _ in range(3)} == {second}
        with second.busy(), second.busy():
            assert {legs.pick() for _ in range(3)} == {third}
    assert [leg.in_flight for leg in legs.legs] == [0, 0, 0]


def test_requests_spread_evenly_whatever_ends_first():
    legs = pool(4)
    held = []
    for number in range(40):
        busy = legs.pick().busy()
        busy.__enter__()
        held.append(busy)
        if number % 3 == 2:
            held.pop(number % len(held)).__exit__(None, None, None)
        counts = [leg.in_flight for leg in legs.legs]
        assert sum(counts) == len(held)
    assert max(counts) - min(counts) <= 2


def test_pending_tokens_weigh_where_it_is_asked():
    legs = pool(2)
    first, second = legs.legs
    first.pending_tokens = 1024
    with second.busy():
        assert legs.pick() is first
        assert {legs.pick(by_pending=True) for _ in range(3)} == {second}
        with second.busy(), second.busy():
            assert legs.pick(by_pending=True) is first


def test_a_request_counts_until_it_ends_however_it_ends():
    leg = Leg("decode", "http://d")
    busy = leg.busy()
    with busy:
        assert leg.in_flight == 1
        with pytest.raises(RuntimeError), leg.busy():
            raise RuntimeError(leg.in_flight)
        assert leg.in_flight == 1
        with leg.busy():
            assert leg.in_flight == 2
    assert leg.in_flight == 0


@pytest.mark.parametrize(
    ("healthy", "draining", "excluded"), list(itertools.product([True, False], repeat=3))
)
def test_a_preferred_leg_is_taken_while_it_is_healthy_even_if_it_drains(healthy, draining, excluded):
    legs = pool(2)
    other, holder = legs.legs
    holder.healthy, holder.draining = healthy, draining
    exclude = (holder,) if excluded else ()
    with holder.busy():
        picked = legs.pick(prefer=holder.url, exclude=exclude)
    assert picked is (holder if healthy and not excluded else other)


@pytest.mark.parametrize(
    ("healthy", "draining", "excluded"), list(itertools.product([True, False], repeat=3))
)
def test_a_new_conversation_needs_a_healthy_leg_that_does_not_drain(healthy, draining, excluded):
    legs = pool(1)
    (leg,) = legs.legs
    leg.healthy, leg.draining = healthy, draining
    usable = healthy and not draining and not excluded
    assert legs.pick(exclude=(leg,) if excluded else ()) is (leg if usable else None)
    assert legs.ready == (healthy and not draining)


def test_a_pool_without_legs_has_none():
    assert Pool("prefill").pick() is None
    assert Pool("prefill").pick(prefer="http://x") is None
    assert not Pool("prefill").ready


def test_ejection_takes_several_bad_checks_and_one_good_check_ends_it():
    leg = Leg("decode", "http://d")
    assert not leg.healthy
    leg.note_check(True, 2)
    assert (leg.healthy, leg.returns) == (True, 1)
    leg.note_check(False, 2)
    assert leg.healthy
    leg.note_check(True, 2)
    leg.note_check(False, 2)
    assert leg.healthy, "not in a row"
    leg.note_check(False, 2)
    assert not leg.healthy
    leg.note_check(True, 2)
    assert (leg.healthy, leg.returns) == (True, 2)


def test_an_idle_leg_that_is_removed_is_gone_at_once():
    gone = []
    legs = pool(2, gone.append)
    leg = legs.legs[0]
    legs.remove(leg.url)
    assert gone == [leg]
    assert legs.by_url(leg.url) is None
    assert leg not in legs.legs
    assert not leg.healthy
    assert {legs.pick().url for _ in range(3)} == {"http://d1"}


def test_a_busy_leg_that_is_removed_finishes_and_is_gone_then():
    gone = []
    legs = pool(2, gone.append)
    leg, other = legs.legs
    with leg.busy():
        with leg.busy():
            legs.remove(leg.url)
            assert {legs.pick() for _ in range(3)} == {other}
            assert legs.pick(prefer=leg.url) is other, "else it would never be idle"
        assert gone == []
    assert gone == [leg]
    assert legs.legs == [other]


def test_a_leg_that_is_added_again_while_it_leaves_stays():
    gone = []
    legs = pool(2, gone.append)
    leg = legs.legs[0]
    with leg.busy():
        legs.remove(leg.url)
        assert legs.add(leg.url) is leg
    assert (gone, leg.draining, leg.healthy) == ([], False, True)
    assert legs.legs[0] is leg


def test_an_added_leg_waits_for_its_first_check():
    legs = pool(1)
    new = legs.add("http://new")
    assert {legs.pick().url for _ in range(3)} == {"http://d0"}
    new.note_check(True, 1)
    assert {legs.pick().url for _ in range(2)} == {"http://d0", "http://new"}


def test_a_drained_leg_stays_until_it_is_resumed():
    legs = pool(2)
    leg, other = legs.legs
    legs.drain(leg.url)
    with leg.busy():
        pass
    assert legs.by_url(leg.url) is leg
    assert {legs.pick() for _ in range(3)} == {other}
    legs.add(leg.url)
    assert {legs.pick() for _ in range(2)} == {leg, other}


def test_what_no_leg_has_cannot_be_drained_or_removed():
    for step in (pool(1).drain, pool(1).remove):
        with pytest.raises(KeyError):
            step("http://x")
