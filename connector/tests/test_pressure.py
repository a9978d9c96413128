"""When leases are given up: a pool of blocks in plain Python."""

from dataclasses import dataclass

import pytest

from pd_connector.leases import LeaseBook
from pd_connector.pressure import Pressure


@dataclass
class Block:
    ref_cnt: int = 0


class Pool:
    def __init__(self, blocks: int) -> None:
        self.blocks = [Block() for _ in range(blocks)]
        self.num_gpu_blocks = blocks

    def get_num_free_blocks(self) -> int:
        return sum(block.ref_cnt == 0 for block in self.blocks)

    def take(self, *blocks: int) -> None:
        for block in blocks:
            self.blocks[block].ref_cnt += 1


class Place:
    """64 blocks; six leases of eight blocks each; a spare of two blocks."""

    def __init__(self) -> None:
        self.pool = Pool(64)
        self.book = LeaseBook(100.0)
        self.pressure = Pressure(self.book, 2)
        self.pressure.watch(self.pool)
        for number in range(6):
            blocks = range(number * 8, number * 8 + 8)
            self.pool.take(*blocks)
            self.book.grant(f"r{number}", tuple(blocks), 128, "seal")

    def given(self, computing: bool = False) -> list[str]:
        return [lease.request for lease in self.pressure.relieve(computing)]


@pytest.fixture
def place() -> Place:
    return Place()


def test_nothing_is_given_up_without_need(place: Place) -> None:
    place.pressure.demand("new", 16, 16)
    assert place.given() == []


def test_a_request_that_does_not_fit_gets_the_oldest_leases(place: Place) -> None:
    place.pressure.demand("new", 30, 30)
    assert place.given() == ["r0", "r1"]


def test_what_is_already_on_its_way_is_not_given_up_again(place: Place) -> None:
    for _ in range(3):
        place.pressure.demand("new", 30, 30)
        place.given()
    assert len(place.book.leaving()) == 2


def test_the_spare_is_kept_only_while_the_engine_computes(place: Place) -> None:
    place.pool.take(*range(48, 63))
    assert place.given() == []
    assert place.given(computing=True) == ["r0"]


def test_a_request_that_seemed_to_fit_and_was_turned_away(place: Place) -> None:
    place.pressure.demand("new", 10, 20)
    assert place.given() == []
    place.pressure.demand("new", 10, 20)
    assert place.given() == ["r0"]
    place.book.freed("r0")
    place.pressure.admitted("new")
    place.pressure.demand("new", 10, 20)
    assert place.given() == []


def test_shared_blocks_are_no_gain(place: Place) -> None:
    place.pool.take(*range(8))
    place.pressure.demand("new", 17, 17)
    assert place.given() == ["r0", "r1"]


def test_without_a_pool_nothing_happens() -> None:
    pressure = Pressure(LeaseBook(100.0), 2)
    pressure.demand("new", 5, 5)
    assert pressure.relieve(True) == []


def test_a_running_request_waits_for_leases_rather_than_being_preempted(place: Place) -> None:
    assert place.pressure.spares_running()
    assert place.given() == ["r0"] or place.pool.get_num_free_blocks() >= 2
    place.pool.take(*range(48, 64))
    assert place.pressure.spares_running()
    place.given()
    for lease in place.book.held():
        place.book.claim(lease.identifier)
    for lease in place.book.leaving():
        place.book.freed(lease.request)
    assert not place.pressure.spares_running()
