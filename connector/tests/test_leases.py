"""The book of leases: every way from a lease's grant to its end, and that its counts add up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from pd_connector.leases import BACKSTOP_SECONDS, CLAIM_SECONDS, Lease, LeaseBook

TTL = 100.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> LeaseBook:
    return LeaseBook(TTL, clock)


def grant(book: LeaseBook, name: str, blocks: int = 3, **more: object) -> Lease:
    return book.grant(name, tuple(range(blocks)), blocks * 16, f"seal-{name}", **more)  # type: ignore[arg-type]


def test_a_lease_ends_when_its_time_is_over(book: LeaseBook, clock: Clock) -> None:
    lease = grant(book, "r")
    assert book.next_deadline() == clock.now + TTL
    clock.now += TTL
    assert not book.begin_read(lease.identifier, "p", lease.seal)
    book.sweep()
    assert book.take_deadlines() == {"r": 0.0}
    assert [left.request for left in book.leaving()] == ["r"]
    book.freed("r")
    assert book.leaving() == []
    assert book.summary()["expired"] == 1
    assert book.claim(lease.identifier) == {"ok": False, "state": "expired"}


def test_whether_a_handle_is_of_this_engine_is_told_without_a_read(book: LeaseBook) -> None:
    lease = grant(book, "r")
    assert book.begin_read(lease.identifier, "", lease.seal)
    assert not book.begin_read(lease.identifier, "", "other")
    assert not book.begin_read("other", "", lease.seal)
    assert book.renew(lease.identifier)["state"] == "held"
    book.release(lease.identifier)
    assert not book.begin_read(lease.identifier, "", lease.seal)
    assert book.summary()["refused"] == 0


def test_renewing_begins_the_time_anew_and_makes_it_the_last_to_be_given_up(
    book: LeaseBook, clock: Clock
) -> None:
    first, second = grant(book, "a"), grant(book, "b")
    clock.now += 60
    answer = book.renew(first.identifier)
    assert (answer["ok"], answer["state"], answer["seconds"]) == (True, "held", TTL)
    assert answer["remote_blocks_expiry_time"] == clock.now + TTL
    assert book.take_deadlines() == {"a": clock.now + TTL + BACKSTOP_SECONDS}
    assert book.give_up(1, len) == [second]


def test_the_oldest_are_given_up_first_and_no_more_than_needed(book: LeaseBook) -> None:
    leases = [grant(book, name) for name in "abc"]
    assert book.give_up(4, len) == leases[:2]
    assert book.take_deadlines() == {"a": 0.0, "b": 0.0}
    assert book.claim(leases[0].identifier)["state"] == "given-up"
    assert book.give_up(0, len) == []


def test_a_claim_protects_for_its_time_and_is_exclusive(book: LeaseBook, clock: Clock) -> None:
    lease = grant(book, "a")
    assert book.claim(lease.identifier)["state"] == "claimed"
    assert book.claim(lease.identifier) == {"ok": False, "state": "claimed"}
    assert book.give_up(1, len) == []
    clock.now += CLAIM_SECONDS
    assert book.claim(lease.identifier)["ok"]
    clock.now += CLAIM_SECONDS
    assert book.give_up(1, len) == [lease]


def test_a_read_protects_against_everything_but_its_report(book: LeaseBook, clock: Clock) -> None:
    lease = grant(book, "a")
    clock.now += TTL - 1
    assert book.begin_read(lease.identifier, "p", lease.seal)
    assert book.take_deadlines() == {"a": clock.now + CLAIM_SECONDS + BACKSTOP_SECONDS}
    clock.now += 2
    book.sweep()
    assert book.give_up(1, len) == []
    assert book.claim(lease.identifier) == {"ok": False, "state": "reading"}
    assert not book.begin_read(lease.identifier, "other", lease.seal)
    assert book.begin_read(lease.identifier, "p", lease.seal)
    book.freed("a")
    assert book.summary()["read"] == 1
    assert not book.begin_read(lease.identifier, "p", lease.seal)


def test_a_reader_that_never_reports_holds_it_for_a_bounded_time(book: LeaseBook, clock: Clock) -> None:
    lease = grant(book, "a")
    book.begin_read(lease.identifier, "p", lease.seal)
    clock.now += CLAIM_SECONDS
    assert book.begin_read(lease.identifier, "other", lease.seal)
    clock.now += CLAIM_SECONDS
    assert book.give_up(1, len) == [lease]


def test_release_waits_for_a_read(book: LeaseBook, clock: Clock) -> None:
    lease = grant(book, "a")
    book.begin_read(lease.identifier, "p", lease.seal)
    assert book.release(lease.identifier) == {"ok": True, "state": "reading"}
    assert not book.claim(lease.identifier)["ok"]
    book.sweep()
    assert book.leaving() == []
    assert book.next_deadline() == clock.now + CLAIM_SECONDS
    clock.now += CLAIM_SECONDS
    book.sweep()
    assert book.summary()["released"] == 1
    assert book.release(lease.identifier) == {"ok": False, "state": "released"}


def test_another_seal_reads_nothing(book: LeaseBook) -> None:
    lease = grant(book, "a")
    assert not book.begin_read(lease.identifier, "p", "other")
    assert not book.begin_read("unknown", "p", lease.seal)


def test_of_the_choices_of_one_request_only_the_last_stays(book: LeaseBook) -> None:
    leases = [grant(book, f"{index}_r", family="r") for index in range(3)]
    assert book.held() == leases[2:]
    assert book.summary()["released"] == 2
    book.freed("2_r")
    grant(book, "0_r", family="r")
    assert book.summary()["released"] == 2


def test_a_hand_off_is_only_for_its_reader(book: LeaseBook, clock: Clock) -> None:
    lease = grant(book, "a", handoff=True)
    for step in (book.renew, book.claim, book.release):
        assert not step(lease.identifier)["ok"]
    clock.now += 2 * TTL
    book.sweep()
    assert book.give_up(1, len) == []
    assert book.held() == []
    assert book.next_deadline() is None
    assert book.begin_read(lease.identifier, "d", lease.seal)
    # No longer than the read may take: decode may have died.
    assert book.take_deadlines() == {"a": clock.now + CLAIM_SECONDS}
    book.freed("a")
    assert not book.begin_read(lease.identifier, "d", lease.seal)
    assert book.summary()["granted"] == 0


class Anything(RuleBasedStateMachine):
    """Whatever happens in whatever order, counts add up and nothing is freed under a reader."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.book = LeaseBook(TTL, self.clock)
        self.number = 0
        self.reading: dict[str, float] = {}

    @rule(target=leases, handoff=st.booleans())
    def grant(self, handoff: bool) -> Lease:
        self.number += 1
        return grant(self.book, f"r{self.number}", 2, handoff=handoff)

    @rule(lease=leases, operation=st.sampled_from(["renew", "claim", "release"]))
    def ask(self, lease: Lease, operation: str) -> None:
        answer = self.book.answer(operation, [lease.identifier])[lease.identifier]
        assert answer["ok"] or "seconds" not in answer

    @rule(lease=leases, reader=st.sampled_from("pq"))
    def begin(self, lease: Lease, reader: str) -> None:
        if self.book.begin_read(lease.identifier, reader, lease.seal):
            self.reading[lease.request] = self.clock.now + CLAIM_SECONDS

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(wanted=st.integers(0, 9))
    def press(self, wanted: int) -> None:
        self.book.give_up(wanted, len)

    @rule()
    def sweep(self) -> None:
        self.book.sweep()

    @rule()
    def step(self) -> None:
        for request, deadline in self.book.take_deadlines().items():
            if deadline == 0.0:
                assert self.reading.get(request, 0.0) <= self.clock.now
                self.book.freed(request)

    @rule(lease=leases)
    def report(self, lease: Lease) -> None:
        if lease.request in self.reading:
            self.book.freed(lease.request)

    @invariant()
    def counts_add_up(self) -> None:
        counts = self.book.summary()
        ended = sum(counts[name] for name in ("read", "released", "given_up", "expired"))
        assert counts["granted"] == ended + counts["held"]


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.lists(st.integers(1, 8), max_size=12), st.integers(0, 60))
def test_giving_up_frees_enough_if_there_is_enough(sizes: list[int], wanted: int) -> None:
    book = LeaseBook(TTL)
    for number, size in enumerate(sizes):
        grant(book, str(number), size)
    gained = sum(len(lease.blocks) for lease in book.give_up(wanted, len))
    assert gained >= min(wanted, sum(sizes))
    assert gained < wanted + 8 or wanted == 0
