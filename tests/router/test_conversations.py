"""The bounded map of handles, on a clock that the test holds."""

from toolkit.router.conversations import ENTRY_OVERHEAD_BYTES, Conversations, Handle


def kept(**limits):
    return Conversations(**{"ttl_s": 100.0, "max_count": 10, "max_bytes": 1 << 20, **limits})


def handle(at, size=10):
    return Handle(b"x" * size, "http://d", at)


def test_a_handle_is_used_once():
    conversations = kept()
    conversations.put(b"k", handle(1.0))
    assert conversations.take(b"k", 2.0) == handle(1.0)
    assert conversations.take(b"k", 2.0) is None
    assert (len(conversations), conversations.size_bytes) == (0, 0)


def test_age_limit_is_exact_and_forgets_on_the_way():
    conversations = kept()
    conversations.put(b"k", handle(0.0))
    assert conversations.take(b"k", 100.0) is None
    conversations.put(b"k", handle(0.0))
    assert conversations.take(b"k", 99.9) is not None
    conversations.put(b"old", handle(0.0))
    conversations.put(b"new", handle(50.0))
    conversations.expire(100.0)
    assert len(conversations) == 1
    assert conversations.events["expired"] == 2


def test_count_and_bytes_are_bounded_by_dropping_the_oldest():
    conversations = kept(max_count=3)
    for number in range(5):
        conversations.put(b"%d" % number, handle(float(number)))
    assert [conversations.take(b"%d" % n, 5.0) is not None for n in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]

    per_entry = ENTRY_OVERHEAD_BYTES + 1000
    conversations = kept(max_bytes=2 * per_entry)
    for number in range(5):
        conversations.put(b"%d" % number, handle(float(number), 1000))
    assert (len(conversations), conversations.size_bytes) == (2, 2 * per_entry)
    conversations.put(b"huge", handle(6.0, 10_000))
    assert len(conversations) == 0
    assert conversations.size_bytes == 0


def test_the_newest_handle_replaces_and_is_the_last_to_leave():
    conversations = kept(max_count=2)
    conversations.put(b"a", handle(1.0))
    conversations.put(b"b", handle(2.0))
    conversations.put(b"a", handle(3.0))
    conversations.put(b"c", handle(4.0))
    assert conversations.take(b"b", 5.0) is None
    assert conversations.take(b"a", 5.0) == handle(3.0)


def test_a_handle_that_was_not_sent_returns_with_its_age_but_never_over_a_newer_one():
    conversations = kept()
    conversations.put(b"a", handle(1.0))
    taken = conversations.take(b"a", 50.0)
    conversations.give_back(b"a", taken)
    assert conversations.take(b"a", 101.0) is None

    conversations.put(b"a", handle(60.0))
    conversations.give_back(b"a", taken)
    assert conversations.take(b"a", 61.0) == handle(60.0)
    assert conversations.size_bytes == 0
