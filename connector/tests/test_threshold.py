"""The break-even of a read, from figures of known engines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_connector.threshold import NEVER, TRIAL_EVERY, Calibration, StepClock, Transfer


def calibrated(compute: float, transfer: float, overhead: float) -> Calibration:
    """Seconds per token, per token, and per read; blocks of 16 tokens and 1 MB, 32 descriptors each."""
    calibration = Calibration(64)
    for tokens in (64, 512, 1024, 4096, 320):
        calibration.computed(tokens, tokens * compute)
        calibration.read(tokens, overhead + tokens * transfer)
        calibration.transferred([Transfer(tokens * transfer, tokens // 16 << 20, tokens * 2)])
    return calibration


def test_the_start_value_holds_until_enough_is_known() -> None:
    calibration = Calibration(64)
    assert calibration.tokens() == 64
    for _ in range(3):
        calibration.computed(100, 1.0)
        calibration.read(100, 1.0)
        calibration.transferred([Transfer(0.1, 1, 1)])
    assert calibration.tokens() == 64


@given(st.floats(1e-6, 1e-2), st.floats(0.01, 0.9), st.floats(1e-4, 1.0))
def test_the_break_even_is_where_both_cost_the_same(compute: float, share: float, overhead: float) -> None:
    tokens = calibrated(compute, compute * share, overhead).tokens()
    expected = overhead / (compute * (1 - share))
    assert tokens == pytest.approx(min(max(1, expected), NEVER), rel=0.01, abs=1)


def test_a_path_slower_than_computing_is_only_tried() -> None:
    calibration = calibrated(1e-4, 2e-4, 0.01)
    assert calibration.tokens() == NEVER
    assert sum(calibration.wanted(100_000) for _ in range(TRIAL_EVERY * 3)) == 3


def test_it_follows_a_path_that_has_become_quick() -> None:
    calibration = calibrated(1e-4, 2e-4, 0.01)
    for _ in range(64):
        calibration.read(1000, 0.011)
        calibration.transferred([Transfer(0.001, 1 << 20, 100)])
    assert calibration.tokens() < 200


def test_one_slow_read_changes_little() -> None:
    calibration = calibrated(1e-4, 1e-6, 0.01)
    before = calibration.tokens()
    calibration.read(100, 5.0)
    calibration.transferred([Transfer(1e-4, 100 // 16 << 20, 200)])
    assert calibration.tokens() == pytest.approx(before, rel=0.1)


def test_the_figures_are_those_that_went_in() -> None:
    figures = calibrated(1e-3, 1e-5, 0.02).figures()
    assert figures["prefill_ms_per_token"] == pytest.approx(1.0)
    assert figures["read_ms_per_mb"] == pytest.approx(0.16)
    assert figures["read_ms_per_descriptor"] == pytest.approx(0.005)
    assert figures["read_overhead_ms"] == pytest.approx(20)


def test_overlapping_steps_are_told_apart() -> None:
    clock = StepClock()
    clock.scheduled(100, 0.0)
    clock.scheduled(50, 0.1)
    assert clock.ended(1.0) == (100, 1.0)
    assert clock.ended(1.5) == (50, 0.5)
    assert clock.ended(1.6) is None
