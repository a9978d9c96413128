"""The map of conversations: who finds what, who has a handle, and what leaves."""

import random

import pytest

from toolkit.router.memory.conversation import END_BYTES, MOST_ENDS, Conversation, Home
from toolkit.router.memory.conversations import Conversations
from toolkit.router.memory.records import Held, Released

TTL = 100.0
LEG = "http://d1"


@pytest.fixture
def conversations(clock):
    return Conversations(TTL, 1000, 1 << 30, clock)


@pytest.fixture
def save(conversations, clock, make_handle):
    def save(keys, lease=None, leg=LEG, handle=None, into=conversations):
        if lease is not None:
            handle = make_handle(lease, blocks=20)
        return into.save(keys, Held(leg, handle, 320, 1000, clock.now, clock.now))

    return save


def lease_of(found):
    return found and found.held.handle and found.held.handle.lease


class TestFinding:
    def test_the_next_turn_finds_what_the_last_one_left(self, conversations, save, turns):
        save(turns.chat("a"), "first")
        found = conversations.find(turns.chat("a", "b"))
        assert (lease_of(found), found.held.leg, found.held.tokens) == ("first", LEG, 320)

    def test_a_stranger_with_the_same_system_prompt_finds_nothing(self, conversations, save, turns):
        save(turns.chat("a", "b"), "first")
        assert conversations.find(turns.chat("c")) is None
        assert conversations.find(turns.chat("a")) is None
        assert conversations.events["miss"] == 2

    def test_of_a_branch_what_comes_after_the_common_turn_is_new(self, conversations, save, turns):
        for said in ("a", "ab", "abc"):
            save(turns.chat(*said))
        found = {said: conversations.find(turns.chat(*said)) for said in ("abc", "abcd", "ab", "abx", "axy")}
        sizes = {said: turns.chat(*said).sizes for said in found}
        assert {said: one.new_bytes for said, one in found.items()} == {
            "abc": None,
            "abcd": None,
            "ab": 0,
            "abx": sum(sizes["abx"][-2:]),
            "axy": sum(sizes["axy"][-4:]),
        }

    def test_of_a_branch_of_a_text(self, conversations, save, turns):
        first = "a" * 600
        for text in (first, first + "b" * 3000):
            save(turns.prompt(text))
        texts = [first + "b" * 3000 + "c", first, first + "x" * 9000]
        assert [conversations.find(turns.prompt(text)).new_bytes for text in texts] == [None, 0, 9000]

    def test_another_tenant_with_the_same_history_finds_nothing(self, conversations, save, turns, make_turns):
        other = make_turns(tenant=b"u" * 16)
        save(turns.chat("a"), "first")
        save(turns.chat("a", name="n"), "named")
        assert conversations.find(other.chat("a", "b")) is None
        assert conversations.find(other.chat("a", name="n")) is None

    def test_the_longest_history_wins(self, conversations, save, turns):
        save(turns.chat("a"), "short")
        found = conversations.find(turns.chat("a", "b"))
        conversations.take(found)
        save(turns.chat("a", "b"), "long")
        save(turns.chat("a", "c"), "branch")
        assert lease_of(conversations.find(turns.chat("a", "b", "d"))) == "long"
        assert lease_of(conversations.find(turns.chat("a", "c", "d"))) == "branch"

    def test_a_repeated_turn_finds_itself(self, conversations, save, turns):
        save(turns.chat("a", "b"), "first")
        found = conversations.find(turns.chat("a", "b"))
        assert lease_of(found) == "first"
        assert save(turns.chat("a", "b"), "again") == [Released(LEG, "first", "superseded")]
        assert len(conversations) == 1

    def test_one_that_goes_on_from_an_earlier_turn_finds_it(self, conversations, save, turns):
        save(turns.chat("a"))
        save(turns.chat("a", "b"), "second")
        found = conversations.find(turns.chat("a", "c"))
        assert lease_of(found) == "second"

    def test_finding_removes_nothing(self, conversations, save, turns):
        save(turns.chat("a"), "first")
        assert [lease_of(conversations.find(turns.chat("a", "b"))) for _ in range(3)] == ["first"] * 3

    def test_a_request_without_keys_is_neither_hit_nor_miss(self, conversations, save, turns):
        keys = turns.prompt("short")
        assert conversations.find(keys) is None
        assert save(keys, "nobody's") == [Released(LEG, "nobody's", "nameless")]
        assert save(keys) == []
        assert not conversations.events
        assert (len(conversations), conversations.bytes) == (0, 0)

    def test_the_eighth_turn_back_is_found_and_the_ninth_is_not(self, conversations, save, turns):
        said = [str(number) for number in range(12)]
        for turn in range(1, 13):
            save(turns.chat(*said[:turn]), f"lease-{turn}")
        assert len(conversations) == 1
        # Deeper ones first: a branch's find changes nothing.
        found = {back: conversations.find(turns.chat(*said[: 12 - back], "other")) for back in range(12)}
        assert [back for back in range(12) if found[back]] == list(range(8))
        assert {lease_of(found[back]) for back in range(8)} == {"lease-12"}


def test_a_key_is_compared_whole_and_at_its_place():
    ids = b"t" * 16 + bytes(range(48))
    conversation = Conversation(Home(LEG), ids, False, b"", Held(LEG, None, 1, 1, 0.0, 0.0))
    assert [conversation.place(key) for key in conversation.found_by()] == [0, 1, 2]
    for at in range(48 - 16 + 1):
        place = conversation.place(b"t" * 16 + bytes(range(at, at + 16)))
        assert place == (at // 16 if at % 16 == 0 else None)
    assert conversation.place(b"u" * 16 + bytes(range(16))) is None
    assert conversation.place(b"t" * 32) is None


class TestNames:
    def test_only_the_name_counts(self, conversations, save, turns):
        save(turns.chat("a", name="n"), "named")
        save(turns.chat("a"), "nameless")
        assert lease_of(conversations.find(turns.chat("x", "y", name="n"))) == "named"
        assert lease_of(conversations.find(turns.chat("a", "b"))) == "nameless"
        assert conversations.find(turns.chat("a", "b", name="other")) is None

    def test_a_name_without_history_finds(self, conversations, save, turns):
        save(turns.prompt("short", name="n"), "named")
        found = conversations.find(turns.prompt("short and more", name="n"))
        assert lease_of(found) == "named"

    def test_how_much_is_new_to_it_is_told_by_the_history(self, conversations, save, turns):
        for said in ("a", "ab", "abc"):
            save(turns.chat(*said, name="n"))
        new = {
            said: conversations.find(turns.chat(*said, name="n")).new_bytes
            for said in ("abc", "abcd", "ab", "abx", "a", "ax", "x")
        }
        sizes = {said: turns.chat(*said).sizes for said in new}
        assert new == {
            # The newest turn again, and the next one.
            "abc": None,
            "abcd": None,
            "ab": 0,
            "abx": sum(sizes["abx"][-2:]),
            "a": 0,
            "ax": sum(sizes["ax"][-2:]),
            "x": sum(sizes["x"]),
        }

    def test_another_history_under_its_name_is_its_history_from_then_on(self, conversations, save, turns):
        for said in ("a", "ab", "x", "xy"):
            save(turns.chat(*said, name="n"))
        found = {said: conversations.find(turns.chat(*said, name="n")) for said in ("xyz", "xb", "abc")}
        sizes = {said: turns.chat(*said).sizes for said in found}
        assert {said: one.new_bytes for said, one in found.items()} == {
            "xyz": None,
            "xb": sum(sizes["xb"][-2:]),
            "abc": sum(sizes["abc"]),
        }

    def test_of_a_text_under_a_name(self, conversations, save, turns):
        first, second = "a" * 600, "a" * 600 + "b" * 3000
        for text in (first, second):
            save(turns.prompt(text, name="n"))
        texts = [second, second + "c", first, first + "x" * 9000, "y" * 4000]
        found = [conversations.find(turns.prompt(text, name="n")).new_bytes for text in texts]
        # With the opening quote the last one has a byte more.
        assert found == [None, None, 0, 9000, 4001]

    def test_without_a_history_it_cannot_be_told(self, conversations, save, turns):
        save(turns.prompt("short", name="n"))
        assert conversations.find(turns.prompt("other", name="n")).new_bytes is None
        assert conversations.find(turns.prompt("y" * 4000, name="n")).new_bytes is None
        save(turns.prompt("y" * 4000, name="n"))
        assert conversations.find(turns.prompt("other", name="n")).new_bytes is None

    def test_no_more_turns_of_it_than_of_others_are_remembered(self, conversations, save, turns):
        said = [f"{number}" for number in range(20)]
        for number in range(1, 21):
            save(turns.chat(*said[:number], name="n"))
        (entry,) = conversations.entries()
        assert len(entry.ends) == MOST_ENDS * END_BYTES
        found = [conversations.find(turns.chat(*said[:number], name="n")).new_bytes for number in (13, 12)]
        assert found == [0, sum(turns.chat(*said[:12]).sizes)]

    def test_the_next_save_supersedes(self, conversations, save, turns):
        save(turns.chat("a", name="n"), "first")
        assert save(turns.chat("b", name="n"), "second") == [Released(LEG, "first", "superseded")]
        assert len(conversations) == 1
        assert conversations.events["replaced"] == 1


class TestPrompts:
    def test_the_next_prompt_finds_the_last_one(self, conversations, save, turns):
        text = "".join(random.Random(1).choices("abc é\n", k=30_000))
        lengths = [600, 1100, 5000, 16_390, 17_000, 30_000]
        for number, length in enumerate(lengths):
            found = conversations.find(turns.prompt(text[:length]))
            assert lease_of(found) == (f"lease-{number - 1}" if number else None)
            save(turns.prompt(text[:length]), f"lease-{number}")
        assert len(conversations) == 1

    @pytest.mark.parametrize("shared", [600, 20_000])
    def test_strangers_with_a_long_beginning_in_common_find_nothing(self, conversations, save, turns, shared):
        """Also where both end between the same two grid points."""
        system = "s" * shared
        save(turns.prompt(f"{system} What is one?"), "one")
        assert conversations.find(turns.prompt(f"{system} What is two?")) is None
        assert conversations.find(turns.prompt(f"{system} What is two? And three, or four?")) is None
        assert conversations.find(turns.prompt(f"{system} What")) is None
        assert lease_of(conversations.find(turns.prompt(f"{system} What is one? 1. And two?"))) == "one"

    def test_each_of_many_strangers_finds_his_own(self, conversations, save, turns):
        system = "s" * 17_000
        asked = [f"{system} {'q' * number} {number}" for number in range(0, 900, 3)]
        for number, text in enumerate(asked):
            save(turns.prompt(text), f"lease-{number}")
        found = [lease_of(conversations.find(turns.prompt(f"{text}. and?"))) for text in asked]
        assert found == [f"lease-{number}" for number in range(len(asked))]

    def test_branches_find_the_turn_they_share(self, conversations, save, turns):
        save(turns.prompt("p" * 1000))
        save(turns.prompt("p" * 2000), "newest")
        found = conversations.find(turns.prompt("p" * 1000 + "q" * 5000))
        assert lease_of(found) == "newest"

    def test_only_the_latest_eight_turns_are_found(self, conversations, save, turns):
        text = "".join(random.Random(1).choices("ab", k=12 * 700))
        for turn in range(1, 13):
            save(turns.prompt(text[: 700 * turn]))
        found = [conversations.find(turns.prompt(text[: 700 * turn] + "!")) for turn in range(1, 13)]
        assert [one is not None for one in found] == [False] * 4 + [True] * 8
        assert len(conversations._directory._lengths) == 8

    def test_nothing_leads_to_a_forgotten_prompt(self, conversations, save, turns, clock):
        save(turns.prompt("p" * 1000), "first")
        clock.now += TTL
        conversations.expire()
        assert conversations.find(turns.prompt("p" * 1001)) is None
        assert len(conversations._directory._lengths) == 0


class TestHandles:
    def test_one_reader_at_a_time(self, conversations, save, turns):
        """Two branches from one history: both find the conversation, one gets the handle."""
        save(turns.chat("a"), "first")
        one, other = (conversations.find(turns.chat("a", text)) for text in "bc")
        assert lease_of(one) == lease_of(other) == "first"
        assert conversations.take(one).lease == "first"
        assert conversations.take(other) is None
        third = conversations.find(turns.chat("a", "d"))
        assert (third.held.handle, third.held.leg) == (None, LEG)

        save(turns.chat("a", "b"), "of b")
        branch = conversations.find(turns.chat("a", "d"))
        assert lease_of(branch) == "of b"

    def test_branches_live_beside_each_other(self, conversations, save, turns):
        save(turns.chat("a"))
        assert save(turns.chat("a", "b"), "of b") == []
        assert save(turns.chat("a", "c"), "of c") == []
        assert len(conversations) == 2
        assert lease_of(conversations.find(turns.chat("a", "b", "x"))) == "of b"
        assert lease_of(conversations.find(turns.chat("a", "c", "x"))) == "of c"
        assert lease_of(conversations.find(turns.chat("a", "x"))) == "of c"

    def test_the_turn_that_goes_on_supersedes_a_handle_that_nobody_read(self, conversations, save, turns):
        save(turns.chat("a"), "first")
        assert save(turns.chat("a", "b"), "second") == [Released(LEG, "first", "superseded")]
        assert conversations.events == {"saved": 2, "replaced": 1}

    def test_a_turn_without_a_handle_keeps_the_earlier_one(self, conversations, save, turns, clock):
        save(turns.chat("a"), "first")
        clock.now += 1
        assert save(turns.chat("a", "b")) == []
        found = conversations.find(turns.chat("a", "b", "c"))
        assert (lease_of(found), found.held.saved_at, len(conversations)) == ("first", 1000.0, 1)
        assert conversations.lose(LEG, "first")

    def test_but_not_one_of_another_leg_or_of_another_branch(self, conversations, save, turns):
        save(turns.chat("a"), "first")
        assert save(turns.chat("a", "b"), leg="http://d2") == [Released(LEG, "first", "superseded")]
        save(turns.chat("x"))
        save(turns.chat("x", "y"), "of y")
        assert save(turns.chat("x", "z")) == []
        assert lease_of(conversations.find(turns.chat("x", "z", "w"))) is None
        assert lease_of(conversations.find(turns.chat("x", "y", "w"))) == "of y"

    def test_one_given_back_is_offered_again(self, conversations, save, turns):
        save(turns.chat("a"), "first")
        size = conversations.bytes
        found = conversations.find(turns.chat("a", "b"))
        handle = conversations.take(found)
        assert conversations.bytes < size - handle.size // 2
        assert conversations.give_back(found, handle) == []
        assert conversations.bytes == size
        assert conversations.take(conversations.find(turns.chat("a", "c"))) is handle
        assert conversations.events["returned"] == 1

    def test_a_newer_turn_beats_one_given_back(self, conversations, save, turns):
        save(turns.chat("a"), "first")
        found = conversations.find(turns.chat("a", "b"))
        handle = conversations.take(found)
        save(turns.chat("a", "c"), "second")
        assert conversations.give_back(found, handle) == [Released(LEG, "first", "superseded")]
        assert lease_of(conversations.find(turns.chat("a", "d"))) == "second"

    def test_one_given_back_to_a_forgotten_conversation_is_released(self, conversations, save, turns):
        save(turns.chat("a"), "first")
        found = conversations.find(turns.chat("a", "b"))
        handle = conversations.take(found)
        assert conversations.drop(found) == []
        assert conversations.give_back(found, handle) == [Released(LEG, "first", "superseded")]
        assert (len(conversations), conversations.bytes) == (0, 0)

    def test_a_lost_lease_leaves_the_conversation(self, conversations, save, turns):
        save(turns.chat("a"), "first")
        assert not conversations.lose("http://d2", "first")
        assert not conversations.lose(LEG, "other")
        assert conversations.lose(LEG, "first")
        assert not conversations.lose(LEG, "first")
        found = conversations.find(turns.chat("a", "b"))
        assert (found.held.handle, found.held.leg) == (None, LEG)
        assert conversations.events["dropped"] == 1

    def test_a_lease_that_is_being_read_is_not_here_to_be_lost(self, conversations, save, turns):
        save(turns.chat("a"), "first")
        conversations.take(conversations.find(turns.chat("a", "b")))
        assert not conversations.lose(LEG, "first")

    def test_a_stock_handle_is_offered_for_its_time_one_with_a_lease_until_it_is_lost(
        self, clock, save, turns, make_handle
    ):
        conversations = Conversations(TTL, 10, 1 << 30, clock, handle_ttl_s=10)
        save(turns.chat("stock"), handle=make_handle("", blocks=20), into=conversations)
        save(turns.chat("leased"), "lease", into=conversations)
        clock.now += 9.9
        early = conversations.find(turns.chat("stock", "b"))
        assert early.held.handle is not None
        clock.now += 0.1
        assert conversations.take(early) is None
        found = conversations.find(turns.chat("stock", "b"))
        assert (found.held.handle, found.held.leg) == (None, LEG)
        assert lease_of(conversations.find(turns.chat("leased", "b"))) == "lease"


class TestBounds:
    def test_the_least_recently_used_leave(self, clock, save, turns):
        conversations = Conversations(TTL, 3, 1 << 30, clock)
        for name in "abc":
            save(turns.chat(name), name, into=conversations)
        conversations.find(turns.chat("a", "x"))
        assert save(turns.chat("d"), "d", into=conversations) == [Released(LEG, "b", "evicted")]
        assert [entry.held.handle.lease for entry in conversations.entries()] == ["c", "a", "d"]
        assert conversations.events["evicted"] == 1

    def test_bytes_are_bounded(self, clock, save, turns, conversations):
        save(turns.chat("a"), "a")
        room = 3 * conversations.bytes + 10
        bounded = Conversations(TTL, 1000, room, clock)
        for number in range(10):
            save(turns.chat(str(number)), str(number), into=bounded)
        assert bounded.bytes <= room
        assert [entry.held.handle.lease for entry in bounded.entries()] == ["7", "8", "9"]

    def test_one_that_is_too_large_for_the_map_is_not_kept(self, clock, save, turns):
        conversations = Conversations(TTL, 1000, 100, clock)
        assert save(turns.chat("a"), "a", into=conversations) == [Released(LEG, "a", "evicted")]
        assert (len(conversations), conversations.bytes) == (0, 0)

    def test_giving_back_keeps_to_the_bound(self, clock, save, turns, conversations):
        save(turns.chat("a"), "a")
        bounded = Conversations(TTL, 1000, conversations.bytes + 10, clock)
        save(turns.chat("a"), "a", into=bounded)
        found = bounded.find(turns.chat("a", "x"))
        handle = bounded.take(found)
        save(turns.chat("b"), into=bounded)
        assert bounded.give_back(found, handle) == [Released(LEG, "a", "evicted")]
        assert len(bounded) == 1

    def test_age_counts_from_the_last_use(self, conversations, save, turns, clock):
        save(turns.chat("a"), "a")
        save(turns.chat("b"), "b")
        clock.now += TTL - 1
        assert conversations.find(turns.chat("a", "x")) is not None
        clock.now += 1
        assert conversations.find(turns.chat("b", "x")) is None
        assert len(conversations) == 2
        assert conversations.expire() == [Released(LEG, "b", "expired")]
        assert (len(conversations), conversations.events["expired"]) == (1, 1)

    def test_saving_forgets_what_is_too_old(self, conversations, save, turns, clock):
        save(turns.chat("a"), "a")
        clock.now += TTL
        assert save(turns.chat("a", "b"), "b") == [Released(LEG, "a", "expired")]
        assert len(conversations) == 1

    def test_many_at_once_leave_bit_by_bit(self, save, turns, clock):
        many = Conversations(TTL, 5000, 1 << 30, clock)
        for number in range(2500):
            save(turns.chat(str(number)), into=many)
        clock.now += TTL
        left = []
        while len(many):
            many.expire()
            left.append(len(many))
        assert left == [1500, 500, 0]
        assert many.bytes == 0


class TestLegs:
    def test_what_a_leg_held_goes_with_it(self, conversations, save, turns):
        save(turns.chat("a"), "a", leg="http://d1")
        save(turns.chat("b"), "b", leg="http://d2")
        taken = conversations.find(turns.chat("a", "x"))
        assert conversations.drop_leg("http://d1") == 1
        assert conversations.drop_leg("http://d1") == 0
        assert conversations.take(taken) is None
        assert not conversations.lose("http://d1", "a")
        assert conversations.find(turns.chat("a", "x")) is None
        assert lease_of(conversations.find(turns.chat("b", "x"))) == "b"
        assert (len(conversations), len([*conversations.entries()])) == (1, 1)
        assert conversations.events["dropped"] == 1

    def test_a_handle_of_a_dropped_leg_is_not_taken_back(self, conversations, save, turns):
        save(turns.chat("a"), "a")
        found = conversations.find(turns.chat("a", "x"))
        handle = conversations.take(found)
        conversations.drop_leg(LEG)
        conversations.give_back(found, handle)
        assert conversations.find(turns.chat("a", "x")) is None

    @pytest.mark.parametrize("name", [None, "n"])
    def test_the_same_conversation_begins_anew_there(self, conversations, save, turns, clock, name):
        save(turns.chat("a", name=name), "old")
        conversations.drop_leg(LEG)
        clock.now += TTL / 2
        save(turns.chat("a", name=name), "new")
        assert lease_of(conversations.find(turns.chat("a", "b", name=name))) == "new"
        clock.now += TTL / 2
        assert conversations.expire() == []
        assert lease_of(conversations.find(turns.chat("a", "b", name=name))) == "new"
        assert len(conversations) == 1

    def test_dropping_tells_why(self, conversations, save, turns):
        save(turns.chat("a"), "a")
        found = conversations.find(turns.chat("a", "b"))
        assert conversations.drop(found, "refused") == [Released(LEG, "a", "refused")]
        assert conversations.drop(found, "refused") == []
        assert conversations.events["dropped"] == 1


class TestRestoring:
    def test_another_map_has_the_same(self, conversations, save, turns, clock):
        save(turns.chat("a"))
        save(turns.chat("a", "b"), "of b")
        save(turns.chat("a", "c"), "of c")
        save(turns.chat("a", name="n"), "named")
        save(turns.prompt("p" * 700), "prompt")
        other = Conversations(TTL, 1000, 1 << 30, clock)
        assert other.restore(conversations.entries()) == []
        assert [*other.entries()] == [*conversations.entries()]
        assert other.bytes == conversations.bytes
        for keys in (
            turns.chat("a", "b", "x"),
            turns.chat("a", "x"),
            turns.chat("a", name="n"),
            turns.prompt("p" * 701),
        ):
            assert lease_of(other.find(keys)) == lease_of(conversations.find(keys)) is not None

    def test_of_two_with_one_key_the_later_has_it(self, conversations, save, turns, clock):
        """As after a kill between the two changes of a branch."""
        save(turns.chat("a"), "first")
        save(turns.chat("a", "b"), "of b")
        stale = [*conversations.entries()]
        save(turns.chat("a", "c"), "of c")
        newest = [*conversations.entries()][-1]
        other = Conversations(TTL, 1000, 1 << 30, clock)
        other.restore([*stale, newest])
        assert lease_of(other.find(turns.chat("a", "x"))) == "of c"
        assert lease_of(other.find(turns.chat("a", "b", "x"))) == "of b"
        assert other.restore([newest]) == [Released(LEG, "of c", "superseded")]
        assert len(other) == 2

    def test_the_bounds_hold(self, conversations, save, turns, clock):
        for name in "abcd":
            save(turns.chat(name), name)
            clock.now += TTL / 3
        other = Conversations(TTL, 2, 1 << 30, clock)
        assert other.restore(conversations.entries()) == [Released(LEG, "b", "evicted")]
        assert [entry.held.handle.lease for entry in other.entries()] == ["c", "d"]
