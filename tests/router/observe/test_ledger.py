import asyncio
import time

import pytest

from toolkit.router.observe.ledger import SETTLE_S, Ledger
from toolkit.router.observe.record import RequestRecord


@pytest.fixture
def told():
    return []


@pytest.fixture
def ledger(told):
    """One with two books."""
    return Ledger(
        lambda record: told.append(("first", record.request_id)),
        lambda record: told.append(("second", record.request_id)),
    )


def end(ledger, *names):
    records = [RequestRecord(name, time.monotonic()) for name in names]
    for record in records:
        ledger.ended(record)
    return records


def test_every_book_is_told_of_every_record_in_turn_by_itself(ledger, told):
    async def run():
        end(ledger, "a", "b")
        assert told == []
        while len(told) < 4:
            await asyncio.sleep(SETTLE_S)
        # The next record starts the clock anew.
        end(ledger, "c")
        while len(told) < 6:
            await asyncio.sleep(SETTLE_S)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert told == [(book, name) for name in "abc" for book in ("first", "second")]


def test_who_reads_the_books_settles_first_and_nothing_is_told_twice(ledger, told):
    async def run():
        end(ledger, "a")
        ledger.settle()
        assert told == [("first", "a"), ("second", "a")]
        ledger.settle()
        await asyncio.sleep(3 * SETTLE_S)

    asyncio.run(run())
    assert told == [("first", "a"), ("second", "a")]


def test_a_record_ends_when_it_is_told_of_not_when_it_is_settled(ledger):
    async def run():
        started, at = time.monotonic(), time.time()
        (record,) = end(ledger, "a")
        ended, until = time.monotonic(), time.time()
        await asyncio.sleep(2 * SETTLE_S)
        ledger.settle()
        assert record.total_ms <= (ended - started) * 1000
        assert at <= record.ended_at <= until

    asyncio.run(run())
