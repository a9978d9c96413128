"""Leases claimed, released and renewed in batches, and what engines may answer to that."""

import asyncio

import orjson
import pytest

from toolkit.router.fleet.leases import MOST_NAMES, LeaseCounts, LeaseKeeper
from toolkit.router.fleet.legs import Leg

pytestmark = pytest.mark.asyncio

SECRET = b"s3cret"


class Lost(list):
    def __call__(self, leg, lease, state):
        self.append((leg.url, lease, state))


@pytest.fixture
def lost():
    return Lost()


@pytest.fixture
def make(engines, clock, lost):
    """A keeper of leases of 400 s that are held for an hour: `make(**changed)`."""

    def build(**changed):
        settings = {"ttl_s": 400, "hold_s": 3600, "on_lost": lost, "clock": clock, "retry_s": 0.001}
        return LeaseKeeper(engines, SECRET, **{**settings, **changed})

    return build


@pytest.fixture
def keeper(make):
    return make()


async def sent(keeper):
    """All that waits has gone out."""
    assert await keeper.drain(10) == 0


async def test_what_comes_together_goes_out_together(keeper, engines, decode):
    keeper.claim(decode, "a")
    keeper.release(decode, "b")
    keeper.claim(decode, "c")
    keeper.release(decode, "d", "e")
    assert engines.asked == [], "nobody waits for it"
    await sent(keeper)
    assert engines.batches("claim") == [["a", "c"]]
    assert engines.batches("release") == [["b", "d", "e"]]
    assert keeper.counts == LeaseCounts(claimed=2, released=3)
    url, method, path, headers, body = engines.asked[0]
    assert (url, method, path) == ("http://d:1", "POST", "/pd/leases/claim")
    assert headers == b"content-type: application/json\r\nauthorization: Bearer s3cret\r\n"
    assert orjson.loads(body) == {"leases": ["a", "c"]}


async def test_without_a_secret_none_is_sent(engines, decode):
    keeper = LeaseKeeper(engines, None, ttl_s=400)
    keeper.claim(decode, "a")
    await sent(keeper)
    assert engines.asked[0][3] == b"content-type: application/json\r\n"


@pytest.mark.parametrize(
    ("count", "bodies"), [(1, [1]), (1000, [1000]), (1024, [1024]), (2500, [1024, 1024, 452])]
)
async def test_a_burst_of_releases_is_few_requests(keeper, engines, decode, count, bodies):
    names = [f"lease-{number:016d}" for number in range(count)]
    for name in names:
        keeper.release(decode, name)
    await sent(keeper)
    assert [len(batch) for batch in engines.batches("release")] == bodies
    assert set(engines.names("release")) == set(names)
    assert max(bodies) <= MOST_NAMES
    assert keeper.counts.released == count


async def test_what_comes_while_a_request_is_under_way_goes_into_the_next_one(keeper, engines, decode):
    gate = engines.says["http://d:1", "/pd/leases/release"] = asyncio.Event()
    keeper.release(decode, "first")
    while not engines.asked:
        await asyncio.sleep(0.001)
    for number in range(50):
        keeper.release(decode, f"later-{number}")
        await asyncio.sleep(0)
    keeper.claim(decode, "c")
    while not engines.batches("claim"):
        await asyncio.sleep(0.001)
    assert len(engines.batches("release")) == 1, "claims do not wait for it"
    gate.set()
    await sent(keeper)
    assert [len(batch) for batch in engines.batches("release")] == [1, 50]


async def test_each_leg_has_requests_of_its_own(keeper, engines, decode):
    other = Leg("decode", "http://d:2")
    engines.says["http://d:1", "/pd/leases/claim"] = asyncio.Event()
    keeper.claim(decode, "a")
    keeper.claim(other, "b")
    while len(engines.asked) < 2:
        await asyncio.sleep(0.001)
    assert [(asked[0], orjson.loads(asked[4])["leases"]) for asked in engines.asked] == [
        ("http://d:1", ["a"]),
        ("http://d:2", ["b"]),
    ]
    assert await keeper.drain(0.01) == 0
    assert keeper.counts == LeaseCounts(claimed=1, failed=1)


async def test_a_lease_named_twice_is_asked_once_and_a_release_ends_a_claim_that_waits(
    keeper, engines, decode
):
    keeper.claim(decode, "a")
    keeper.claim(decode, "a")
    keeper.release(decode, "a")
    keeper.release(decode, "a")
    await sent(keeper)
    assert engines.batches("claim") == []
    assert engines.batches("release") == [["a"]]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        *((state, True) for state in ("unknown", "given-up", "expired", "released", "read")),
        *((state, False) for state in ("claimed", "reading")),
    ],
)
async def test_a_refused_claim_is_told_unless_somebody_else_has_the_lease(
    keeper, engines, decode, lost, state, told
):
    engines.states["a"] = state
    keeper.claim(decode, "a")
    keeper.claim(decode, "b")
    await sent(keeper)
    assert lost == ([("http://d:1", "a", state)] if told else [])
    assert keeper.counts == LeaseCounts(claimed=1, refused=1)


async def test_a_release_that_comes_too_late_is_no_loss(keeper, engines, decode, lost):
    engines.states["a"] = "expired"
    keeper.release(decode, "a")
    await sent(keeper)
    assert lost == []
    assert keeper.counts == LeaseCounts(ended=1)


async def test_without_claims_a_claim_only_ends_the_renewals(make, engines, decode):
    keeper = make(claims=False)
    keeper.keep(decode, "a")
    keeper.claim(decode, "a")
    await sent(keeper)
    assert (engines.asked, keeper.kept) == ([], 0)


@pytest.mark.parametrize("name", ["", "a" * 65, 'a"b', "a\\b", "a b", "a\n", "é", "\ud800"])
async def test_a_name_that_would_spoil_its_batch_is_left_out(keeper, engines, decode, name):
    keeper.release(decode, "a", name, "b")
    await sent(keeper)
    assert engines.batches("release") == [["a", "b"]]
    assert keeper.counts == LeaseCounts(released=2, failed=1)


async def pass_time(keeper, clock, seconds, step=1.0):
    """As the router does: a poll each second."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now = min(end, clock.now + step)
        keeper.poll()
        await sent(keeper)


async def test_a_kept_lease_is_renewed_at_half_of_its_time(keeper, engines, decode, clock, lost):
    keeper.keep(decode, "a")
    await pass_time(keeper, clock, 199)
    assert engines.asked == []
    await pass_time(keeper, clock, 1)
    assert engines.batches("renew") == [["a"]]
    # The engine says 480 s from now.
    await pass_time(keeper, clock, 239)
    assert len(engines.asked) == 1
    await pass_time(keeper, clock, 1)
    assert len(engines.asked) == 2
    assert keeper.counts == LeaseCounts(renewed=2)
    assert lost == []


async def test_renewals_end_when_the_lease_is_as_old_as_it_may_be(keeper, engines, decode, clock, lost):
    keeper.keep(decode, "a")
    await pass_time(keeper, clock, 3599)
    renewals = len(engines.asked)
    assert renewals == 15
    assert keeper.kept == 1
    await pass_time(keeper, clock, 10_000, step=20)
    assert len(engines.asked) == renewals
    assert keeper.kept == 0
    assert lost == [], "it ended as it was meant to"


async def test_a_thousand_leases_are_renewed_in_one_request(keeper, engines, decode, clock):
    for number in range(1000):
        keeper.keep(decode, f"lease-{number}")
    await pass_time(keeper, clock, 210)
    assert [len(batch) for batch in engines.batches("renew")] == [1000]


@pytest.mark.parametrize("how", ["claim", "release", "forget"])
async def test_what_nobody_keeps_is_not_renewed(keeper, engines, decode, clock, how):
    keeper.keep(decode, "a")
    getattr(keeper, how)(decode, "a")
    await pass_time(keeper, clock, 1000, step=10)
    assert engines.batches("renew") == []
    assert keeper.kept == 0


async def test_a_lease_given_back_after_a_claim_is_kept_anew(keeper, engines, decode, clock):
    keeper.keep(decode, "a")
    await pass_time(keeper, clock, 100)
    keeper.claim(decode, "a")
    keeper.keep(decode, "a")
    await pass_time(keeper, clock, 199)
    assert engines.batches("renew") == []
    await pass_time(keeper, clock, 1)
    assert engines.batches("renew") == [["a"]]


async def test_without_a_hold_nothing_is_renewed(make, engines, decode, clock):
    keeper = make(hold_s=None)
    keeper.keep(decode, "a")
    await pass_time(keeper, clock, 1000, step=10)
    assert (engines.asked, keeper.kept) == ([], 0)


@pytest.mark.parametrize("state", ["unknown", "given-up", "expired", "read"])
async def test_a_lease_that_is_not_renewed_is_lost_and_told(keeper, engines, decode, clock, lost, state):
    keeper.keep(decode, "a")
    keeper.keep(decode, "b")
    engines.states["a"] = state
    await pass_time(keeper, clock, 200)
    assert lost == [("http://d:1", "a", state)]
    assert keeper.counts == LeaseCounts(renewed=1, lost=1)
    assert keeper.kept == 1
    await pass_time(keeper, clock, 240)
    assert engines.names("renew") == {"a": 1, "b": 2}


async def test_a_lease_that_was_taken_while_its_renewal_was_under_way_is_not_lost(
    keeper, engines, decode, clock, lost
):
    gate = engines.says["http://d:1", "/pd/leases/renew"] = asyncio.Event()
    engines.states["a"] = "read"
    keeper.keep(decode, "a")
    clock.now += 200
    keeper.poll()
    while not engines.batches("renew"):
        await asyncio.sleep(0.001)
    keeper.forget(decode, "a")
    gate.set()
    await sent(keeper)
    assert (lost, keeper.counts.lost) == ([], 0)


@pytest.mark.parametrize("trouble", ["broke the connection", 500, 503, b"", b"[]", b'{"leases": []}', b"{}"])
async def test_renewals_that_fail_are_tried_again_until_the_lease_has_run_out(
    keeper, engines, decode, clock, lost, trouble
):
    keeper.keep(decode, "a")
    keeper.keep(decode, "b")
    engines.says["http://d:1", "/pd/leases/renew"] = trouble
    await pass_time(keeper, clock, 300)
    assert engines.names("renew")["a"] == 2
    assert lost == []
    keeper.forget(decode, "b")
    await pass_time(keeper, clock, 101)
    assert lost == [("http://d:1", "a", "expired")]
    assert engines.names("renew")["a"] < 15


async def test_renewals_that_failed_once_go_on(keeper, engines, decode, clock, lost):
    keeper.keep(decode, "a")
    engines.says["http://d:1", "/pd/leases/renew"] = "broke the connection"
    await pass_time(keeper, clock, 250)
    engines.says.clear()
    await pass_time(keeper, clock, 2000, step=10)
    assert lost == []
    assert keeper.counts.renewed >= 7


async def test_leases_of_an_earlier_router_are_asked_about_whatever_their_age(
    keeper, engines, decode, clock, lost
):
    engines.states["gone"] = "expired"
    for lease, age in (
        ("young", 50),
        ("old", 300),
        ("renewed-before", 2000),
        ("gone", 2000),
        ("ended", 3700),
    ):
        keeper.keep(decode, lease, age_s=age)
    await pass_time(keeper, clock, 1)
    assert engines.names("renew") == {"old": 1, "renewed-before": 1, "gone": 1}
    assert lost == [("http://d:1", "gone", "expired")]
    assert keeper.kept == 3
    await pass_time(keeper, clock, 149)
    assert engines.names("renew")["young"] == 1


async def test_releases_that_fail_are_told_again_a_few_times(keeper, engines, decode, caplog):
    engines.says["http://d:1", "/pd/leases/release"] = "broke the connection"
    keeper.release(decode, "a", "b")
    await sent(keeper)
    assert engines.batches("release") == [["a", "b"]] * 3
    assert keeper.counts == LeaseCounts(failed=2)
    assert len(caplog.records) == 1
    assert "decode http://d:1: a lease request (release) failed: broke the connection" in caplog.text
    assert "s3cret" not in caplog.text
    engines.says.clear()
    keeper.release(decode, "c")
    await sent(keeper)
    assert keeper.counts == LeaseCounts(failed=2, released=1)


async def test_a_release_that_fails_once_is_delivered(keeper, engines, decode):
    engines.says["http://d:1", "/pd/leases/release"] = 503
    keeper.release(decode, "a")
    while not engines.asked:
        await asyncio.sleep(0)
    engines.says.clear()
    keeper.release(decode, "b")
    await sent(keeper)
    assert keeper.counts == LeaseCounts(released=2)


async def test_a_claim_that_fails_is_not_told_again(keeper, engines, decode):
    engines.says["http://d:1", "/pd/leases/claim"] = "did not answer in time"
    keeper.claim(decode, "a")
    await sent(keeper)
    assert len(engines.asked) == 1
    assert keeper.counts == LeaseCounts(failed=1)


async def test_an_answer_that_leaves_names_out_counts_them_as_failed(keeper, engines, decode, lost):
    engines.says["http://d:1", "/pd/leases/claim"] = b'{"leases": {"a": {"ok": true}, "b": 5}}'
    for name in "abc":
        keeper.claim(decode, name)
    await sent(keeper)
    assert keeper.counts == LeaseCounts(claimed=1, failed=2)
    assert lost == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "decode http://d:1 refuses the lease secret; give --lease-secret-file here"),
        (403, "decode http://d:1 takes lease requests of its own machine only; name a file"),
        (404, "decode http://d:1 has no lease routes"),
        (405, "decode http://d:1 has no lease routes"),
    ],
)
async def test_a_leg_that_takes_no_lease_requests_is_left_alone_until_it_was_away(
    keeper, engines, decode, caplog, status, said
):
    for operation in ("claim", "release", "renew"):
        engines.says["http://d:1", f"/pd/leases/{operation}"] = status
    keeper.release(decode, *(f"r{number}" for number in range(3000)))
    await sent(keeper)
    for name in "abc":
        keeper.claim(decode, name)
        keeper.release(decode, name)
        await sent(keeper)
    assert len(engines.asked) == 1
    assert len(caplog.records) == 1
    assert said in caplog.text
    assert f"answered {status}" in caplog.text
    assert "s3cret" not in caplog.text
    engines.says.clear()
    decode.note_check(True, 1)
    keeper.claim(decode, "d")
    await sent(keeper)
    assert len(engines.asked) == 1, "it was not away"
    decode.eject()
    decode.note_check(True, 1)
    keeper.claim(decode, "e")
    await sent(keeper)
    assert keeper.counts.claimed == 1


async def test_releases_that_the_routes_do_not_take_wait_for_a_request(keeper, engines, decode):
    engines.says["http://d:1", "/pd/leases/release"] = 403
    names = [f"r{number}" for number in range(3000)]
    keeper.release(decode, *names)
    assert keeper.take_in_band(decode) == [], "it is not known yet"
    await sent(keeper)
    assert keeper.counts == LeaseCounts(failed=3000 - MOST_NAMES), "no engine takes more with one request"
    assert keeper.take_in_band(decode) == names[:MOST_NAMES]
    keeper.release(decode, "a", "b", "not a lease")
    keeper.release(decode, "a")
    assert keeper.take_in_band(decode) == ["a", "b"]
    assert keeper.take_in_band(decode) == []
    assert keeper.counts == LeaseCounts(failed=3001 - MOST_NAMES, handed_on=MOST_NAMES + 2)


async def test_only_releases_go_in_band_and_only_to_their_engine(keeper, engines, decode):
    engines.says["http://d:1", "/pd/leases/claim"] = 403
    keeper.claim(decode, "a")
    await sent(keeper)
    keeper.claim(decode, "b")
    keeper.release(decode, "c")
    assert keeper.take_in_band(Leg("decode", "http://d:2")) == []
    keeper.forget_leg(decode)
    assert keeper.take_in_band(decode) == [], "another engine knows nothing of it"
    assert keeper.counts == LeaseCounts(failed=1)


async def test_leases_of_a_leg_without_routes_run_out_by_themselves(keeper, engines, decode, clock, lost):
    engines.says["http://d:1", "/pd/leases/renew"] = 404
    keeper.keep(decode, "a")
    await pass_time(keeper, clock, 401)
    assert len(engines.asked) == 1
    assert lost == [("http://d:1", "a", "expired")]


async def test_a_leg_that_is_forgotten_leaves_nothing_behind(keeper, engines, decode, clock, lost):
    other = Leg("decode", "http://d:2")
    gate = engines.says["http://d:1", "/pd/leases/release"] = asyncio.Event()
    keeper.keep(decode, "a")
    keeper.keep(other, "b")
    keeper.release(decode, "c")
    while not engines.asked:
        await asyncio.sleep(0.001)
    keeper.release(decode, "d")
    keeper.forget_leg(decode)
    keeper.forget_leg(decode)
    gate.set()
    await sent(keeper)
    assert keeper.kept == 1
    await pass_time(keeper, clock, 200)
    assert engines.batches("renew") == [["b"]]
    assert engines.batches("release") == [["c"]]
    assert lost == []
    keeper.keep(decode, "of-the-new-engine")
    await pass_time(keeper, clock, 200)
    assert "of-the-new-engine" in engines.names("renew")


async def test_the_end_waits_for_what_is_to_be_sent_but_not_for_ever(keeper, engines, decode):
    engines.says["http://d:1", "/pd/leases/release"] = asyncio.Event()
    keeper.release(decode, "a")
    while not engines.asked:
        await asyncio.sleep(0.001)
    keeper.release(decode, "b", "c")
    assert await keeper.drain(0.01) == 2
    assert keeper.counts == LeaseCounts(failed=3)
