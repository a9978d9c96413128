"""The one loop that looks at files: it survives a fault in one of them."""

import asyncio

import pytest

from toolkit.errors import SettingsError
from toolkit.router.fleet.polling import Poller, WatchedFiles, stamp

pytestmark = pytest.mark.asyncio


class Counting:
    def __init__(self, enough, error=None):
        self.count = 0
        self.enough = enough
        self.error = error

    def poll(self):
        self.count += 1
        if self.count == 3:
            self.enough.set()
        if self.error:
            raise self.error


async def test_all_are_polled_again_and_again_though_one_fails(caplog):
    broken, good = asyncio.Event(), asyncio.Event()
    things = [Counting(broken, ZeroDivisionError()), Counting(good)]
    poller = Poller(things, interval_s=0.001)
    poller.start()
    async with asyncio.timeout(10):
        await broken.wait()
        await good.wait()
    await poller.stop()
    before = [thing.count for thing in things]
    await asyncio.sleep(0.01)
    assert [thing.count for thing in things] == before
    assert "Counting failed" in caplog.text


async def test_a_poller_that_never_ran_can_be_stopped():
    await Poller(()).stop()


class Unreadable(WatchedFiles):
    """Files that do not change, and can be read again after a while."""

    def __init__(self, failures):
        super().__init__("the files")
        self.left = failures
        self.taken = 0
        self.stamp = "as ever"

    def _stamps(self):
        return (self.stamp,)

    def _take(self):
        self.left -= 1
        if self.left >= 0:
            raise SettingsError("the disk is away", next_step="wait")
        self.taken += 1


async def test_what_could_not_be_read_is_read_again_though_it_did_not_change(caplog):
    files = Unreadable(failures=3)
    for _ in range(6):
        files.poll()
    assert files.taken == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the files stay as they were: the disk is away Next: wait",
        "the files were read again",
    ]


async def test_files_that_come_back_as_they_were_are_told_to_be_well(caplog):
    files = Unreadable(failures=0)
    files.load()
    files.stamp, files.left = "gone", 2
    files.poll()
    files.stamp, files.left = "as ever", 0
    for _ in range(3):
        files.poll()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


async def test_a_stamp_changes_with_content_rights_and_existence(tmp_path):
    file = tmp_path / "f"
    seen = [stamp(file)]
    for step in (
        lambda: file.write_text("a"),
        lambda: file.write_text("ab"),
        lambda: file.chmod(0o600),
        lambda: (file.with_name("g").write_text("cd"), file.with_name("g").rename(file)),
        file.unlink,
    ):
        step()
        seen.append(stamp(file))
    assert seen[0] is seen[-1] is None
    assert len(set(seen)) == 5
