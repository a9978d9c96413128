"""Places, the queue before them, and who leaves it how."""

import asyncio
import random

import pytest

from toolkit.router.fleet.admission import MOST_RETRY_S, Admission, ClientLeft
from toolkit.router.request.refusal import Refusal

pytestmark = pytest.mark.asyncio


class Reply:
    """The part of wire's Reply that the queue looks at."""

    def __init__(self, on_gone=None):
        self.gone = False
        self.on_gone = on_gone

    def leave(self):
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()


async def settle():
    for _ in range(30):
        await asyncio.sleep(0)


class Crowd:
    """Requests that hold their places until they are told to end."""

    def __init__(self, admission):
        self.admission = admission
        self.began = []
        self.tasks = {}
        self.replies = {}
        self._ends = {}

    async def arrive(self, *names, on_gone=None):
        for name in names:
            self._ends[name] = asyncio.Event()
            self.replies[name] = Reply(on_gone)
            self.tasks[name] = asyncio.create_task(self._run(name))
        await settle()

    async def end(self, *names):
        for name in names:
            self._ends[name].set()
        await settle()

    async def _run(self, name):
        async with self.admission.place(self.replies[name]):
            self.began.append(name)
            await self._ends[name].wait()

    @property
    def counts(self):
        return self.admission.running, self.admission.waiting


async def test_the_first_to_come_is_the_first_to_be_served():
    crowd = Crowd(Admission(2, 10, 30))
    await crowd.arrive(*"abcdef")
    assert (crowd.began, crowd.counts) == (["a", "b"], (2, 4))
    await crowd.end("b")
    assert (crowd.began, crowd.counts) == (["a", "b", "c"], (2, 3))
    await crowd.end("a", "c")
    assert (crowd.began, crowd.counts) == ([*"abcde"], (2, 1))
    await crowd.end("d", "e", "f")
    assert (crowd.began, crowd.counts) == ([*"abcdef"], (0, 0))


async def test_nobody_overtakes_the_queue():
    crowd = Crowd(Admission(1, 10, 30))
    await crowd.arrive("a", "b")
    crowd._ends["a"].set()
    await crowd.arrive("late")
    assert crowd.began == ["a", "b"]
    await crowd.end("b", "late")
    assert crowd.counts == (0, 0)


async def test_a_full_queue_is_refused_with_429_and_a_time():
    crowd = Crowd(Admission(1, 1, 30))
    await crowd.arrive("a", "b", "c")
    with pytest.raises(Refusal) as caught:
        await crowd.tasks["c"]
    assert caught.value.status == 429
    assert 1 <= caught.value.retry_after_s <= MOST_RETRY_S
    assert crowd.admission.refused == 1
    assert crowd.counts == (1, 1)
    await crowd.end("a", "b")
    assert crowd.counts == (0, 0)


async def test_without_a_queue_what_has_no_place_is_refused():
    crowd = Crowd(Admission(1, 0, 30))
    await crowd.arrive("a", "b")
    with pytest.raises(Refusal):
        await crowd.tasks["b"]
    await crowd.end("a")
    await crowd.arrive("c")
    assert crowd.began == ["a", "c"]
    await crowd.end("c")


async def test_the_deadline_ends_the_waiting():
    crowd = Crowd(Admission(1, 10, 0.01))
    await crowd.arrive("a", "b", "c")
    for name in "bc":
        with pytest.raises(Refusal, match=r"no place for this request within 0\.01 s") as caught:
            await crowd.tasks[name]
        assert caught.value.status == 429
    assert crowd.counts == (1, 0)
    await crowd.end("a")
    assert crowd.counts == (0, 0)


async def test_a_client_that_leaves_leaves_the_queue():
    crowd = Crowd(Admission(1, 10, 30))
    await crowd.arrive("a", "b", "c")
    crowd.replies["b"].leave()
    await settle()
    assert crowd.counts == (1, 1)
    with pytest.raises(ClientLeft):
        await crowd.tasks["b"]
    await crowd.end("a")
    assert crowd.began == ["a", "c"]
    await crowd.end("c")
    assert crowd.counts == (0, 0)


async def test_a_client_that_has_left_before_does_not_wait():
    crowd = Crowd(Admission(1, 10, 30))
    await crowd.arrive("a")
    gone = Reply()
    gone.leave()
    with pytest.raises(ClientLeft):
        async with crowd.admission.place(gone):
            pass
    assert crowd.counts == (1, 0)
    await crowd.end("a")


async def test_what_the_reply_does_when_its_client_leaves_is_done_too_and_given_back():
    crowd = Crowd(Admission(1, 10, 30))
    cancelled = []

    def cancel():
        cancelled.append("b")
        crowd.tasks["b"].cancel()

    await crowd.arrive("a")
    await crowd.arrive("b", "c", on_gone=cancel)
    crowd.replies["b"].leave()
    await settle()
    assert cancelled == ["b"]
    assert crowd.tasks["b"].cancelled()
    assert crowd.counts == (1, 1)
    await crowd.end("a")
    assert crowd.replies["c"].on_gone is cancel, "the place does not keep it"
    await crowd.end("c")
    assert crowd.counts == (0, 0)


@pytest.mark.parametrize("moment", ["waiting", "at the same time", "given", "running"])
async def test_a_cancelled_request_gives_its_place_to_the_next(moment):
    crowd = Crowd(Admission(1, 10, 30))
    await crowd.arrive("a", "b", "c")
    if moment == "given":
        # The place is b's, but b has not run since.
        crowd._ends["a"].set()
        while crowd.admission.waiting == 2:
            await asyncio.sleep(0)
        assert crowd.began == ["a"]
    elif moment == "at the same time":
        crowd._ends["a"].set()
    elif moment == "running":
        await crowd.end("a")
        assert crowd.began == ["a", "b"]
    crowd.tasks["b"].cancel()
    await settle()
    await crowd.end("a")
    assert crowd.began[-1] == "c"
    assert crowd.counts == (1, 0)
    await crowd.end("c")
    assert crowd.counts == (0, 0)


async def test_a_request_that_fails_gives_its_place_back():
    admission = Admission(1, 10, 30)
    with pytest.raises(ZeroDivisionError):
        async with admission.place(Reply()):
            raise ZeroDivisionError
    assert (admission.running, admission.waiting) == (0, 0)


async def test_any_mix_of_arrivals_ends_and_departures_keeps_the_count():
    dice = random.Random(7)
    crowd = Crowd(Admission(3, 20, 30))
    names = [f"r{number}" for number in range(300)]
    for name in names:
        await crowd.arrive(name)
        open_now = [one for one in crowd.tasks if not crowd.tasks[one].done()]
        for one in dice.sample(open_now, k=min(len(open_now), dice.randrange(3))):
            dice.choice([crowd._ends[one].set, crowd.tasks[one].cancel, crowd.replies[one].leave])()
        await settle()
        running = [one for one in crowd.began if not crowd.tasks[one].done()]
        assert crowd.admission.running == len(running) <= 3
        assert crowd.admission.waiting == 0 or len(running) == 3
    await crowd.end(*names)
    await asyncio.wait(crowd.tasks.values())
    assert crowd.counts == (0, 0)
    assert {type(task.exception()) for task in crowd.tasks.values() if not task.cancelled()} <= {
        type(None),
        ClientLeft,
        Refusal,
    }


async def retry_after(admission):
    with pytest.raises(Refusal) as caught:
        async with admission.place(Reply()):
            pass
    return caught.value.retry_after_s


async def test_retry_after_follows_the_pace_of_the_queue(clock):
    crowd = Crowd(Admission(1, 4, 1000, clock))
    await crowd.arrive(*"abcde")
    assert await retry_after(crowd.admission) == 1, "nothing is known yet"
    for done, new in zip("abc", "fgh", strict=True):
        clock.now += 2
        await crowd.end(done)
        await crowd.arrive(new)
    assert await retry_after(crowd.admission) == 10, "five turns of two seconds"
    clock.now += 5
    assert await retry_after(crowd.admission) == 25, "and none has ended for five"
    clock.now += 500
    assert await retry_after(crowd.admission) == MOST_RETRY_S
    await crowd.end(*"defgh")


async def test_quiet_times_say_nothing_about_the_pace(clock):
    crowd = Crowd(Admission(1, 0, 1000, clock))
    for name in "abc":
        await crowd.arrive(name)
        clock.now += 3
        await crowd.end(name)
        clock.now += 10_000
    await crowd.arrive("d")
    assert await retry_after(crowd.admission) == 3
    await crowd.end("d")


async def test_places_that_become_free_beside_free_ones_say_nothing_about_the_pace(clock):
    crowd = Crowd(Admission(2, 0, 1000, clock))
    await crowd.arrive("a", "b")
    clock.now += 3
    await crowd.end("a")
    clock.now += 10_000
    await crowd.end("b")
    await crowd.arrive("c", "d")
    assert await retry_after(crowd.admission) == 3
    await crowd.end("c", "d")
