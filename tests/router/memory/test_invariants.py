"""Whatever happens to the map in whatever order, it stays whole and no lease is lost from sight."""

import random

import pytest

from toolkit.router.memory.conversations import Conversations
from toolkit.router.memory.records import Held

LEGS = ["http://d1", "http://d2", "http://d3"]
TTL = 50.0


def assert_whole(conversations, max_count, max_bytes):
    """Counts, bytes and order agree, and each key leads to conversations that are there."""
    kept = [*conversations._by_use]
    directory = conversations._directory
    assert len(kept) == conversations._count <= max_count
    assert len(conversations) == sum(not one.home.gone for one in kept)
    assert conversations.bytes == sum(one.size for one in kept) <= max_bytes
    assert [one.used_at for one in kept] == sorted(one.used_at for one in kept)

    assert len({one.number for one in kept}) == len(kept)
    assert {one for one in directory._numbered if one is not None} == set(kept)
    assert len(directory._numbered) == len(kept) + len(directory._free)
    assert len(directory) == sum(len(one.found_by()) for one in kept)
    assert len(directory._by_lease) == sum(one.lease is not None for one in kept)
    assert len(directory._lengths) == sum(len(one.lengths()) for one in kept)
    for one in kept:
        assert all(one in dict(directory.having(key)) for key in one.found_by())
        assert 1 <= len(one.found_by()) <= 8
        assert len(one.lengths()) in (0, len(one.found_by()))
    for home in {one.home for one in kept}:
        assert home.conversations == sum(one.home is home for one in kept)
    findable = [(key, one) for one in kept if not one.home.gone for key in one.found_by()]
    assert len({key for key, _ in findable}) == len(findable)


class World:
    """Clients of a few tenants who go on, branch, repeat, leave; and a note of each lease's whereabouts."""

    def __init__(self, seed, clock, make_turns, make_handle):
        self.source = random.Random(seed)
        self.clock = clock
        self.max_count = self.source.choice([3, 20, 1000])
        self.max_bytes = self.source.choice([4000, 40_000, 1 << 30])
        self.conversations = Conversations(TTL, self.max_count, self.max_bytes, clock, handle_ttl_s=20)
        self.turns = [make_turns(tenant=bytes([number]) * 16) for number in range(2)]
        self.make_handle = make_handle
        self.saved = {}
        self.kept = {}
        self.taken = []

    def some_keys(self):
        """Of a small world, so that histories meet often; and what they are of."""
        source, tenant = self.source, self.source.randrange(2)
        said = (
            *"aaaaaaaaaaa"[: source.choice([0, 1, 2, 10])],
            *source.choices("ab", k=source.randrange(1, 4)),
        )
        kind = source.randrange(8)
        if kind == 0:
            return self.turns[tenant].chat(*said, name="n"), (tenant, "n")
        if kind < 4:
            text = "".join(600 * letter for letter in said)
            return self.turns[tenant].prompt(text), (tenant, text)
        return self.turns[tenant].chat(*said), (tenant, said)

    def step(self):
        self.clock.now += self.source.random() * 3
        name = self.source.choices(
            ["save", "turn", "look", "give_back", "drop", "drop_leg", "expire", "lose"],
            [30, 40, 10, 10, 2, 1, 5, 5],
        )[0]
        getattr(self, name)()

    def save(self):
        keys, whose = self.some_keys()
        source, lease = self.source, f"lease-{len(self.saved)}"
        leg = source.choice(LEGS)
        handle = self.make_handle(lease, blocks=source.randrange(1, 60)) if source.random() < 0.8 else None
        if handle is not None:
            self.saved[lease] = whose
            self.kept[lease] = leg
        held = Held(leg, handle, 10, 100, self.clock.now, self.clock.now)
        self.released(self.conversations.save(keys, held))

    def turn(self):
        keys, (tenant, what) = self.some_keys()
        found = self.conversations.find(keys)
        if found is None:
            return
        handle = self.conversations.take(found)
        assert handle is found.held.handle
        if handle is not None:
            whose, before = self.saved[handle.lease]
            assert whose == tenant
            # Some turn of one is the beginning of the other: at least what was said first is the same.
            assert before == what == "n" or before[0] == what[0]
            del self.kept[handle.lease]
            self.taken.append((found, handle))

    def look(self):
        found = self.conversations.find(self.some_keys()[0])
        assert found is None or found.held.leg in LEGS

    def give_back(self):
        if self.taken:
            found, handle = self.taken.pop(self.source.randrange(len(self.taken)))
            self.kept[handle.lease] = found.held.leg
            self.released(self.conversations.give_back(found, handle))

    def drop(self):
        found = self.conversations.find(self.some_keys()[0])
        if found is not None:
            self.released(self.conversations.drop(found))

    def drop_leg(self):
        leg = self.source.choice(LEGS)
        self.conversations.drop_leg(leg)
        self.kept = {lease: holder for lease, holder in self.kept.items() if holder != leg}
        # What was taken from there comes to nothing.
        self.taken = [(found, handle) for found, handle in self.taken if found.held.leg != leg]

    def expire(self):
        self.released(self.conversations.expire())

    def lose(self):
        lease = f"lease-{self.source.randrange(1 + len(self.saved))}"
        leg = self.kept.get(lease)
        assert self.conversations.lose(leg or LEGS[0], lease) == (leg is not None)
        self.kept.pop(lease, None)

    def released(self, leases):
        for one in leases:
            assert self.kept.pop(one.lease) == one.leg

    def assert_no_lease_is_lost_from_sight(self):
        entries = self.conversations.entries()
        assert self.kept == {
            entry.held.handle.lease: entry.held.leg for entry in entries if entry.held.handle is not None
        }


@pytest.mark.parametrize("seed", range(25))
def test_the_map_stays_whole(seed, clock, make_turns, make_handle):
    world = World(seed, clock, make_turns, make_handle)
    for _ in range(400):
        world.step()
        world.assert_no_lease_is_lost_from_sight()
        assert_whole(world.conversations, world.max_count, world.max_bytes)
    assert world.conversations.events["hit"] > 5
    clock.now += TTL
    world.expire()
    assert_whole(world.conversations, 0, 0)
    assert (world.kept, len(world.conversations)) == ({}, 0)
