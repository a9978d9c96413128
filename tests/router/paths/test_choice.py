"""The path of a turn: what is forced, what is possible, and what was measured on an H200 and a slow link."""

import pytest

from toolkit.router.paths.choice import Limits, Path, Turn, choose
from toolkit.router.paths.costs import PROBE_EVERY, Costs

PREFILL, READBACK, LOCAL = Path
NO_LIMITS = Limits()
HELD = {"transferable": True, "found": True, "decode_here": True, "handle": True, "proven": True}

# vLLM 0.26.0, NIXL 1.3.1, one H200: turns of `prompt` tokens, 256 of them new. Milliseconds: prefill's leg
# cold and with a read, to the first token cold, with a read, and by decode alone (medians of 3 to 5).
H200 = {
    "8B, block 16": [
        (2048, 55, 44, 92, 82, 30),
        (4096, 106, 42, 146, 82, 38),
        (8192, 230, 74, 288, 139, 46),
        (16384, 523, 168, 584, 232, 51),
        (24576, 879, 272, 967, 360, 84),
    ],
    "8B, block 128": [
        (2048, 55, 46, 109, 82, 41),
        (4096, 107, 53, 150, 96, 38),
        (8192, 225, 70, 280, 112, 50),
        (16384, 512, 87, 574, 148, 68),
        (24576, 853, 104, 947, 182, 67),
    ],
    "14B, block 16": [
        (4096, 188, 80, 246, 134, 52),
        (8192, 401, 128, 461, 188, 42),
        (16384, 891, 217, 950, 310, 66),
        (24576, 1493, 279, 1575, 376, 76),
    ],
}
SLOW_LINK = [(2048, 58, 770, 203, 918, 41), (4096, 109, 1407, 249, 1558, 54)]
NEW = 256


def feed(costs, point):
    prompt, cold, read, ttft_cold, ttft_read, local = point
    costs.observe_prefill(cold, prompt=prompt)
    costs.observe_pull(ttft_cold - cold, prompt=prompt)
    costs.observe_readback(read, prompt=prompt, held=prompt - NEW)
    costs.observe_pull(ttft_read - read, prompt=prompt)
    costs.observe_local(local, suffix=NEW)


def measured(points, *, times=3):
    costs = Costs()
    for _ in range(times):
        for point in points:
            feed(costs, point)
    return costs


def turn(prompt=24_576, suffix=NEW, **changes):
    sizes = {"prompt_tokens": prompt, "held_tokens": prompt - suffix, "suffix_tokens": suffix}
    return Turn(**{**HELD, **sizes, **changes})


def chosen(turn, costs=None, limits=NO_LIMITS):
    choice = choose(turn, Costs() if costs is None else costs, limits)
    return choice.path, str(choice.reason)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (turn(transferable=False), (LOCAL, "not-transferable")),
        (turn(transferable=False, forced=PREFILL), (LOCAL, "not-transferable")),
        (Turn(transferable=True), (PREFILL, "new")),
        (turn(decode_here=False), (PREFILL, "decode-away")),
        (turn(), (LOCAL, "short-suffix")),
        (turn(suffix=512), (LOCAL, "short-suffix")),
        (turn(suffix=513), (READBACK, "long-suffix")),
        (turn(suffix=0), (LOCAL, "short-suffix")),
        (turn(pending_tokens=2048 - NEW), (LOCAL, "short-suffix")),
        (turn(pending_tokens=2049 - NEW), (READBACK, "decode-busy")),
        # Decode's cache may hold it without a handle; nobody else can read it.
        (turn(handle=False, proven=False), (LOCAL, "short-suffix")),
        (turn(handle=False, proven=False, suffix=513), (PREFILL, "no-handle")),
        (turn(handle=False, proven=False, pending_tokens=5000), (PREFILL, "no-handle")),
        # A stock engine's handle says nothing of its tokens.
        (turn(proven=False), (LOCAL, "short-suffix")),
        (turn(proven=False, suffix=513), (PREFILL, "unproven-history")),
    ],
)
def test_without_measurements_what_is_possible_decides(found, expected):
    assert chosen(found) == expected


@pytest.mark.parametrize("by", ["header", "deployment"])
@pytest.mark.parametrize(
    ("path", "changes", "expected"),
    [
        (LOCAL, {"suffix": 9000, "pending_tokens": 9000}, (LOCAL, "forced")),
        (LOCAL, {"found": False, "decode_here": False, "handle": False}, (LOCAL, "forced")),
        (PREFILL, {}, (PREFILL, "forced")),
        (READBACK, {}, (READBACK, "forced")),
        (READBACK, {"handle": False}, (PREFILL, "forced-unavailable")),
        (READBACK, {"found": False}, (PREFILL, "forced-unavailable")),
        (READBACK, {"decode_here": False}, (PREFILL, "forced-unavailable")),
        (READBACK, {"proven": False}, (PREFILL, "forced-unavailable")),
    ],
)
def test_a_forced_path_is_taken_where_it_exists(by, path, changes, expected):
    found = turn(**changes, forced=path if by == "header" else None)
    limits = Limits(path=path) if by == "deployment" else NO_LIMITS
    assert chosen(found, measured(SLOW_LINK), limits) == expected


def test_the_header_goes_before_the_deployment():
    assert chosen(turn(forced=PREFILL), limits=Limits(path=LOCAL)) == (PREFILL, "forced")


def test_decode_local_can_be_switched_off():
    limits = Limits(decode_local_tokens=0)
    assert chosen(turn(suffix=0), limits=limits) == (READBACK, "long-suffix")


@pytest.mark.parametrize("shape", H200)
def test_the_h200_takes_short_turns_on_decode_and_reads_for_long_ones(shape):
    costs = measured(H200[shape])
    for prompt, *_ in H200[shape]:
        assert chosen(turn(prompt), costs) == (LOCAL, "short-suffix")
        assert chosen(turn(prompt, pending_tokens=2048), costs) == (READBACK, "decode-busy")
        if prompt > 2048:
            assert chosen(turn(prompt, suffix=600), costs) == (READBACK, "long-suffix")


@pytest.mark.parametrize("shape", H200)
def test_the_estimates_are_near_what_was_measured(shape):
    """Within 35 %, or 45 ms for the shortest; the line is straight, and attention is not."""
    costs = measured(H200[shape])
    for prompt, _, _, ttft_cold, ttft_read, local in H200[shape]:
        for path, truth in ((PREFILL, ttft_cold), (READBACK, ttft_read), (LOCAL, local)):
            estimate = costs.estimate(path, prompt=prompt, held=prompt - NEW, suffix=NEW)
            assert estimate == pytest.approx(truth, rel=0.35, abs=45)


def test_at_24k_the_estimates_show_the_measured_gain():
    costs = measured(H200["8B, block 128"])
    cold, read, local = (costs.estimate(path, prompt=24_576, held=24_320, suffix=NEW) for path in Path)
    assert cold / local > 10
    assert cold / read > 3.5


def test_a_long_new_part_is_read_or_computed_by_what_is_cheaper():
    costs = measured(H200["8B, block 128"])
    assert chosen(turn(24_576, suffix=8000), costs) == (READBACK, "long-suffix")
    assert chosen(turn(24_576, suffix=24_000), measured(SLOW_LINK)) == (PREFILL, "measured")


def test_a_slow_link_is_read_over_until_it_is_measured_and_then_no_more():
    costs = Costs()
    long = turn(4096, suffix=600)
    for number in range(PROBE_EVERY):
        if number < 3:
            assert chosen(long, costs) == (READBACK, "long-suffix")
            costs.observe_readback(1407, prompt=4096, held=4096 - 600)
            costs.observe_prefill(109, prompt=4096)
        else:
            assert chosen(long, costs) == (PREFILL, "measured")
        # Decode alone is as fast as ever.
        assert chosen(turn(4096), costs) == (LOCAL, "short-suffix")


def test_a_slow_link_is_slow_at_every_length():
    costs = measured(SLOW_LINK)
    for prompt in (1024, 2048, 4096, 8192, 24_576, 100_000):
        assert chosen(turn(prompt, suffix=513), costs) == (PREFILL, "measured")


def test_a_rejected_path_is_tried_again_now_and_then_and_comes_back_when_the_link_does():
    costs = measured(SLOW_LINK, times=40)
    long = turn(4096, suffix=600)
    choices = []
    for _ in range(PROBE_EVERY * 4):
        choices.append(chosen(long, costs))
        if choices[-1][0] is READBACK:
            costs.observe_readback(42, prompt=4096, held=4096 - 600)
        else:
            costs.observe_prefill(106, prompt=4096)
    probes = [number for number, choice in enumerate(choices) if choice == (READBACK, "probe")]
    assert probes == [PROBE_EVERY - 1, 2 * PROBE_EVERY - 1, 3 * PROBE_EVERY - 1]
    assert set(choices[probes[-1] + 1 :]) == {(READBACK, "long-suffix")}


def test_a_link_that_becomes_slow_is_noticed_within_three_turns():
    costs = measured(H200["8B, block 128"], times=20)
    long = turn(4096, suffix=600)
    paths = []
    for _ in range(10):
        paths.append(chosen(long, costs)[0])
        if paths[-1] is READBACK:
            costs.observe_readback(1407, prompt=4096, held=4096 - 600)
    assert paths == [READBACK] * 3 + [PREFILL] * 7


def test_decode_local_that_was_measured_to_be_slower_is_given_up_and_probed():
    """A decode engine whose cache lost the history computes all of it, slower than prefill would."""
    costs = measured(H200["8B, block 16"])
    lost = turn(4096, handle=False, proven=False)
    for _ in range(3):
        costs.observe_local(900, suffix=NEW)
    choices = [chosen(lost, costs) for _ in range(PROBE_EVERY)]
    assert choices == [(PREFILL, "no-handle")] * (PROBE_EVERY - 1) + [(LOCAL, "probe")]
    # Where it can be read, that is the next best.
    assert chosen(turn(4096), costs) == (READBACK, "measured")


def test_only_rejections_count_toward_a_probe():
    costs = measured(SLOW_LINK)
    for _ in range(PROBE_EVERY * 3):
        assert chosen(turn(4096), costs) == (LOCAL, "short-suffix")
        assert chosen(Turn(transferable=True), costs) == (PREFILL, "new")
    assert chosen(turn(4096, suffix=600), costs) == (PREFILL, "measured")


@pytest.mark.parametrize("shape", [*H200, "slow"])
def test_no_choice_is_slower_than_computing(shape):
    points = H200.get(shape, SLOW_LINK)
    costs = measured(points)
    for prompt, _, _, ttft_cold, ttft_read, local in points:
        for found in (turn(prompt), turn(prompt, pending_tokens=2048)):
            path, _ = chosen(found, costs)
            assert {PREFILL: ttft_cold, READBACK: ttft_read, LOCAL: local}[path] <= ttft_cold
