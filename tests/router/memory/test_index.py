"""The index against a plain dictionary."""

import random
from collections import Counter, defaultdict

import pytest

from toolkit.router.memory.index import MOST_NUMBER, KeyIndex


def keys(count):
    source = random.Random(count)
    return [source.randbytes(32) for _ in range(count)]


def test_it_is_a_multimap():
    source = random.Random(3)
    known, index, model = keys(300), KeyIndex(), defaultdict(Counter)
    for _ in range(5000):
        key, number = source.choice(known), source.choice([0, 1, 7, 300, MOST_NUMBER])
        if source.random() < 0.6:
            index.add(key, number)
            model[key][number] += 1
        elif model[key][number]:
            index.remove(key, number)
            model[key][number] -= 1
        else:
            with pytest.raises(KeyError):
                index.remove(key, number)
    assert {key: index.numbers(key) for key in known} == {key: sorted(model[key].elements()) for key in known}
    assert len(index) == sum(counts.total() for counts in model.values())


def test_what_was_never_added_has_no_numbers():
    index = KeyIndex()
    for number, key in enumerate(keys(20_000)):
        index.add(key, number)
    assert sum(len(index.numbers(key)) for key in keys(20_001)) < 3


def test_the_first_that_is_known_is_found():
    index, (a, b, c, d) = KeyIndex(), keys(4)
    index.add(b, 1)
    index.add(b, 2)
    index.add(d, 3)
    assert index.first([a, b, c, d]) == (1, [1, 2])
    assert index.first([a, c, d]) == (2, [3])
    assert index.first([a, c]) is None
    assert index.first([]) is None


def test_numbers_at_the_bounds_stay_with_their_keys():
    index, many = KeyIndex(), keys(5000)
    for key in many:
        index.add(key, 0)
        index.add(key, MOST_NUMBER)
    assert all(index.numbers(key)[0] == 0 and index.numbers(key)[-1] == MOST_NUMBER for key in many)
