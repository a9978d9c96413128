"""The measured costs: medians, lines, and when the past no longer counts."""

import random

import pytest

from toolkit.router.paths.choice import Path
from toolkit.router.paths.costs import LATEST, MEASURED_FROM, Costs, Line

SIZES = {"prompt": 1000, "held": 800, "suffix": 200}


def line(*points):
    found = Line()
    for count, cost in points:
        found.observe(count, cost)
    return found


def test_too_few_measurements_say_nothing():
    for count in range(MEASURED_FROM):
        found = line(*[(100, 10)] * count)
        assert (found.at(100), found.each) == (None, None)
    assert line(*[(100, 10)] * MEASURED_FROM).at(200) == 20


def test_a_fixed_part_and_a_slope_are_told_apart():
    found = line(*((count, 30 + 0.05 * count) for count in (1000, 20_000, 2000, 10_000, 4000, 8000)))
    for count in (500, 3000, 50_000):
        assert found.at(count) == pytest.approx(30 + 0.05 * count, rel=0.01)
    assert found.each == pytest.approx(0.05, rel=0.01)


def test_one_stray_measurement_moves_nothing():
    """The first read between two engines pays for their handshake."""
    calm = [(count, 30 + 0.05 * count) for count in (1000, 2000, 4000, 8000, 16_000)] * 3
    for stray in (0, 7, len(calm) - 1):
        points = [*calm[:stray], (calm[stray][0], 5000.0), *calm[stray + 1 :]]
        assert line(*points).at(8000) == pytest.approx(430, rel=0.1)


def test_neither_part_is_ever_negative():
    rng = random.Random(3)
    for _ in range(200):
        found = line(*((rng.randint(1, 30_000), rng.uniform(0, 900)) for _ in range(rng.randint(3, 100))))
        assert found.each >= 0
        assert found.at(1) >= 0
        assert found.at(30_000) >= found.at(1)


@pytest.mark.parametrize("point", [(0, 5), (-3, 5), (5, -1)])
def test_what_tells_nothing_is_not_counted(point):
    assert line(*[point] * 10).at(10) is None


def test_the_latest_measurements_count():
    found = line(*[(100, 10)] * 500, *[(100, 14)] * (LATEST // 2 + 8))
    assert found.at(100) == pytest.approx(14)


@pytest.mark.parametrize("factor", [0.1, 0.4, 2.5, 50])
def test_three_in_a_row_are_a_change(factor):
    found = line(*[(100, 10)] * 60)
    for number in range(3):
        assert found.at(100) == 10, number
        found.observe(100, 10 * factor)
    assert found.at(100) == pytest.approx(10 * factor)


def test_three_apart_are_none():
    found = line(*([(100, 10)] * 5 + [(100, 90)]) * 8)
    assert found.at(100) == 10


def test_a_path_is_measured_for_itself():
    costs = Costs()
    for _ in range(MEASURED_FROM):
        costs.observe_prefill(100, prompt=1000)
    assert costs.estimate(Path.PREFILL, **SIZES) == 100
    assert costs.estimate(Path.READBACK, **SIZES) is None
    assert costs.estimate(Path.DECODE_LOCAL, **SIZES) is None
    for _ in range(MEASURED_FROM):
        # 20 ms of it are the computing of 200 tokens.
        costs.observe_readback(60, prompt=1000, held=800)
        costs.observe_pull(30, prompt=1000)
        costs.observe_local(25, suffix=200)
    assert costs.estimate(Path.PREFILL, **SIZES) == 130
    assert costs.estimate(Path.READBACK, **SIZES) == pytest.approx(90)
    assert costs.estimate(Path.DECODE_LOCAL, **SIZES) == 25
    # Half as much held and all the rest to compute.
    assert costs.estimate(Path.READBACK, prompt=1000, held=400, suffix=600) == pytest.approx(20 + 60 + 30)


def test_a_read_that_took_no_time_costs_nothing_and_not_less():
    costs = Costs()
    for _ in range(MEASURED_FROM):
        costs.observe_prefill(100, prompt=1000)
    for _ in range(MEASURED_FROM):
        # Computing the other 900 would have taken 90 ms.
        costs.observe_readback(5, prompt=1000, held=100)
    assert costs.estimate(Path.READBACK, prompt=1000, held=100, suffix=900) == pytest.approx(90)


def test_tokens_of_a_prompt_from_its_bytes():
    costs = Costs()
    assert costs.prompt_tokens(4000) == 1000
    for tokens in (990, 1000, 5000):
        costs.observe_prompt(tokens, history_bytes=2000)
    assert costs.prompt_tokens(4000) == 2000
    costs.observe_prompt(0, history_bytes=10)
    costs.observe_prompt(10, history_bytes=0)
    assert costs.prompt_tokens(4000) == 2000


@pytest.mark.parametrize(
    ("held_prompt", "expected"),
    [
        # 4,000 bytes of 4 to a token; 700 of the thousand are the answer, which decode has.
        (6000, 300),
        (5300, 0),
        # Not known how long the answer was: all of it counts as new, at the rate of all prompts.
        (None, 1000),
        (0, 1000),
    ],
)
def test_how_much_of_a_turn_is_new(held_prompt, expected):
    sizes = {"history_bytes": 28_000, "held_bytes": 24_000, "held_tokens": 6700}
    held, new = Costs().held_and_new(**sizes, held_prompt=held_prompt)
    assert held == 6700
    assert new == pytest.approx(expected, abs=120 if held_prompt == 5300 else 0)


def test_a_shortened_history_may_be_another_one():
    """What was left out may stand at its beginning: then decode's cache has nothing of the rest."""
    found = Costs().held_and_new(history_bytes=800, held_bytes=900, held_tokens=300, held_prompt=200)
    assert found == (0, 200)


@pytest.mark.parametrize(
    ("new_bytes", "expected"),
    [
        # A branch from an early turn: the rest of what decode holds is another branch's.
        (20_000, (1000, 5000)),
        # Nothing in common, under one name.
        (24_000, (0, 6000)),
        # An early turn again: no more is held of it than its own tokens.
        (0, (6000, 0)),
    ],
)
def test_of_another_branch_only_what_is_common_is_held(new_bytes, expected):
    sizes = {"history_bytes": 24_000, "held_bytes": 24_000, "held_tokens": 6700, "held_prompt": 6000}
    assert Costs().held_and_new(**sizes, new_bytes=new_bytes) == expected


def test_images_in_a_history_do_not_make_the_text_that_follows_cheap():
    """Measured: 2.7 MB of an image are some 1,000 tokens."""
    held = {"held_bytes": 2_700_000, "held_tokens": 1057, "held_prompt": 1057}
    assert Costs().held_and_new(history_bytes=2_892_000, **held) == (1057, 12_000)
    costs = Costs()
    for _ in range(MEASURED_FROM):
        costs.observe_prompt(1057, history_bytes=2_700_000)
    assert costs.prompt_tokens(192_000) == 12_000


def reads(**told):
    """What a read of 8,000 tokens that took 20 ms is taken to cost after four more readings."""
    costs = Costs()
    for _ in range(MEASURED_FROM):
        costs.observe_prefill(1000, prompt=10_000)
    for _ in range(2 * MEASURED_FROM):
        costs.observe_readback(220, prompt=10_000, held=8_000, read=8_000)
    for _ in range(4):
        costs.observe_readback(**told)
    return costs.estimate(Path.READBACK, prompt=8_000, held=8_000, suffix=0)


def test_of_a_read_that_brought_nothing_only_a_long_wait_is_learned():
    assert reads(ms=1000, prompt=10_000, held=8_000, read=0) == pytest.approx(20)
    assert reads(ms=1100, prompt=10_000, held=8_000, read=0) == pytest.approx(20)
    # Prefill waited for a holder that did not answer.
    assert reads(ms=6000, prompt=10_000, held=8_000, read=0) == pytest.approx(5000)
    # What was not read had to be computed: that is not the read's cost.
    assert reads(ms=620, prompt=10_000, held=8_000, read=4_000) == pytest.approx(20)


def test_a_read_that_brought_nothing_tells_nothing_before_prefill_is_measured():
    costs = Costs()
    for _ in range(MEASURED_FROM):
        costs.observe_readback(1000, prompt=10_000, held=8_000, read=0)
    assert costs.estimate(Path.READBACK, prompt=10_000, held=8_000, suffix=2_000) is None
