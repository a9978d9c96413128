"""The map's file: what comes back after an end of any kind, and which files are refused."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from toolkit.errors import SettingsError
from toolkit.router.memory.conversations import Conversations
from toolkit.router.memory.mapfile import FORMAT, MapFile
from toolkit.router.memory.records import Held, Released

TTL = 100.0
LEG = "http://d1"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "map.sqlite"


class Router:
    """A process's map and its file. `wall` runs beside the monotonic clock, which begins anew with each."""

    def __init__(self, path, clock, wall, **bounds):
        self.file = MapFile.open(path, clock=clock, wall=wall)
        limits = {"ttl_s": TTL, "max_count": 1000, "max_bytes": 1 << 30, **bounds}
        self.conversations = Conversations(**limits, clock=clock, journal=self.file)
        self.clock = clock
        self.released = self.file.restore(self.conversations)

    def save(self, keys, handle=None, leg=LEG):
        self.clock.now += 1 / 1024  # Exact beside the wall clock, too.
        now = self.clock()
        return self.conversations.save(keys, Held(leg, handle, 320, 1000, now, now, 300))

    def end(self):
        self.file.close()


@pytest.fixture
def wall(clock):
    """`wall.ahead` of the monotonic clock."""

    class Wall:
        ahead = 1_700_000_000.0

        def __call__(self):
            return self.ahead + clock()

    return Wall()


@pytest.fixture
def start(path, clock, wall):
    routers = []

    def start(**bounds):
        routers.append(Router(path, clock, wall, **bounds))
        return routers[-1]

    yield start
    for router in routers:
        router.end()


def entries(router):
    return [*router.conversations.entries()]


def written(path):
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT key, leg, data IS NOT NULL FROM conversations").fetchall()
    connection.close()
    return rows


class TestComingBack:
    def test_all_comes_back(self, start, turns, make_handle):
        first = start()
        first.save(turns.chat("a"), make_handle("a"))
        first.save(turns.chat("a", "b"), make_handle("b", seed=1))
        first.save(turns.chat("a", "c"), make_handle("c", seed=2), leg="http://d2")
        first.save(turns.chat("x", name="n"), make_handle("named"))
        first.save(turns.prompt("p" * 5000), make_handle("prompt"))
        before = entries(first)
        first.end()
        second = start()
        assert entries(second) == before
        assert [entry.held.handle.unpack() for entry in before] == [
            entry.held.handle.unpack() for entry in entries(second)
        ]
        for keys, lease in [
            (turns.chat("a", "b", "z"), "b"),
            (turns.chat("a", "z"), "c"),
            (turns.chat("z", name="n"), "named"),
            (turns.prompt("p" * 5001), "prompt"),
        ]:
            assert second.conversations.find(keys).held.handle.lease == lease

    def test_the_secret_stays(self, start):
        first = start()
        first.end()
        second = start()
        assert first.file.secret == second.file.secret
        assert len(set(first.file.secret)) > 4

    def test_what_was_taken_dropped_or_lost_does_not_come_back(self, start, turns, make_handle):
        first = start()
        for name in "abcde":
            first.save(turns.chat(name), make_handle(name), leg=f"http://{name}")
        conversations = first.conversations
        conversations.take(conversations.find(turns.chat("a", "x")))
        conversations.drop(conversations.find(turns.chat("b", "x")))
        conversations.drop_leg("http://c")
        conversations.lose("http://d", "d")
        before = {entry.key: entry.held.handle for entry in entries(first)}
        first.end()
        second = start()
        after = {entry.key: entry.held.handle and entry.held.handle.lease for entry in entries(second)}
        assert after == {key: handle and handle.lease for key, handle in before.items()}
        assert sorted(after.values(), key=str) == [None, None, "e"]

    def test_one_given_back_does(self, start, turns, make_handle):
        first = start()
        first.save(turns.chat("a"), make_handle("a"))
        found = first.conversations.find(turns.chat("a", "x"))
        first.conversations.give_back(found, first.conversations.take(found))
        first.end()
        assert start().conversations.find(turns.chat("a", "x")).held.handle.lease == "a"

    def test_a_conversation_that_began_anew_outlives_its_dropped_leg(self, start, turns, make_handle, clock):
        first = start()
        first.save(turns.chat("a", name="n"), make_handle("old"))
        first.conversations.drop_leg(LEG)
        clock.now += TTL / 2
        first.save(turns.chat("a", name="n"), make_handle("new"))
        clock.now += TTL / 2
        first.conversations.expire()
        first.end()
        assert start().conversations.find(turns.chat("b", name="n")).held.handle.lease == "new"

    @pytest.mark.parametrize(
        "unsafe", [{"pd_lease": ""}, {"pd_proof": None}, {"pd_proof": {"format": 1}}], ids=str
    )
    def test_a_handle_whose_holder_nobody_asks_does_not_come_back(self, start, turns, make_handle, unsafe):
        """Whether it was read since the last write is not known, and its blocks may hold other tokens now."""
        first = start()
        first.save(turns.chat("a"), make_handle(**unsafe))
        first.end()
        held = start().conversations.find(turns.chat("a", "b")).held
        assert (held.leg, held.handle, held.tokens, held.prompt_tokens) == (LEG, None, 320, 300)

    def test_ages_are_of_the_wall_clock(self, start, turns, make_handle, clock, wall, path):
        first = start()
        first.save(turns.chat("old"), make_handle("old"))
        clock.now += 1
        first.save(turns.chat("young"), make_handle("young"))
        first.end()
        # A machine that was started anew: its monotonic clock begins again, 99 s later.
        clock.now, wall.ahead = 5.0, wall.ahead + clock.now + 99.0 - 5.0
        second = start()
        assert second.conversations.find(turns.chat("old", "x")) is None
        held = second.conversations.find(turns.chat("young", "x")).held
        assert held.used_at == pytest.approx(5.0 - 99.0, abs=0.01)
        assert held.handle.lease == "young"
        second.end()
        assert len(written(path)) == 1

    def test_a_clock_that_was_set_back_makes_nothing_younger_than_new(
        self, start, turns, make_handle, wall, clock
    ):
        first = start()
        first.save(turns.chat("a"), make_handle("a"))
        first.end()
        wall.ahead -= 5000
        held = start().conversations.find(turns.chat("a", "b")).held
        assert (held.used_at, held.saved_at) == (clock.now, clock.now)

    def test_smaller_bounds_hold_and_tell_what_they_release(self, start, turns, make_handle, path):
        first = start()
        for name in "abc":
            first.save(turns.chat(name), make_handle(name))
        first.end()
        second = start(max_count=1)
        assert second.released == [Released(LEG, "a", "evicted"), Released(LEG, "b", "evicted")]
        second.end()
        assert len(written(path)) == 1

    def test_the_file_holds_no_more_than_the_map(self, start, turns, make_handle, path):
        first = start(max_count=3)
        for turn in range(1, 5):
            for name in "abcde":
                first.save(turns.chat(*(name * turn)), make_handle(f"{name}{turn}"))
        keys = {entry.key for entry in entries(first)}
        first.end()
        assert {row[0] for row in written(path)} == keys
        assert len(keys) == 3

    def test_numbers_that_sqlite_cannot_keep_do_no_harm(self, start, turns):
        first = start()
        first.conversations.save(turns.chat("a"), Held(LEG, None, 1 << 80, 10, 1000.0, 1000.0, 1 << 80))
        first.end()
        assert start().conversations.find(turns.chat("a", "b")).held.tokens == (1 << 63) - 1


class TestWriting:
    def test_saving_waits_for_no_disk(self, start, turns, make_handle):
        router = start()
        with router.file._lock:
            for number in range(20_000):
                router.file.removed(number.to_bytes(32, "big"))
            router.save(turns.chat("a"), make_handle("a"))
            # The writer may hold one batch.
            assert 0 < router.file.waiting <= 2 * 8192
            assert router.file.lost > 0
        router.end()
        assert router.file.waiting == 0

    def test_a_batch_is_written_without_waiting_for_the_end(self, start, turns, make_handle):
        router = start()
        for number in range(600):
            router.save(turns.chat(str(number)), make_handle(str(number), blocks=20))
        deadline = time.monotonic() + 60
        while router.file.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        assert router.file.waiting == 0
        assert router.file.lost == 0

    def test_a_disk_that_fails_is_told_once_and_tried_again(self, start, turns, make_handle, caplog, path):
        router = start()
        router.file._connection.execute("PRAGMA query_only = 1")
        router.save(turns.chat("a"), make_handle("a"))
        deadline = time.monotonic() + 60
        while len(caplog.records) < 1 and time.monotonic() < deadline:
            router.file._wake.set()
            time.sleep(0.01)
        for _ in range(20):
            router.file._wake.set()
            time.sleep(0.005)
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "map.sqlite: the map is not being written: attempt to write a readonly" in caplog.text
        with router.file._lock:
            router.file._connection.execute("PRAGMA query_only = 0")
        router.end()
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
        assert len(written(path)) == 1

    def test_changes_that_could_not_be_written_are_told_at_the_end(self, start, turns, caplog):
        router = start()
        router.file._connection.execute("PRAGMA query_only = 1")
        router.save(turns.chat("a"))
        router.end()
        assert "1 changes of the map were not written" in caplog.text

    def test_closing_ends_the_thread_and_may_be_repeated(self, start):
        router = start()
        router.end()
        router.end()
        assert not [thread for thread in threading.enumerate() if thread.name == "map-file"]


class TestRefusing:
    def refused(self, path, match):
        before = path.read_bytes()
        with pytest.raises(SettingsError, match=match) as caught:
            MapFile.open(path)
        assert str(path) in str(caught.value)
        assert caught.value.next_step
        assert path.read_bytes() == before

    def make(self, path, content):
        path.write_bytes(content)
        path.chmod(0o600)

    @pytest.mark.parametrize("content", [b"a text of mine\n" * 400, b"\0", b"SQLite"])
    def test_what_is_no_database(self, path, content):
        self.make(path, content)
        self.refused(path, "is not a database")

    def test_what_only_begins_like_one(self, path):
        self.make(path, b"SQLite format 3\0" + b"\xff" * 5000)
        self.refused(path, "cannot be read: file is not a database")

    def test_a_database_of_something_else(self, path):
        self.make(path, b"")
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE mine (a)")
        connection.close()
        self.refused(path, "database of something else")

    def test_another_format(self, start, path):
        start().end()
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE meta SET value = ? WHERE name = 'format'", (FORMAT + 1,))
        connection.close()
        self.refused(path, f"has format {FORMAT + 1}, this version reads {FORMAT}")

    @pytest.mark.parametrize(
        ("damage", "match"),
        [
            ("DELETE FROM meta WHERE name = 'format'", "no format"),
            ("DELETE FROM meta WHERE name = 'secret'", "no secret"),
            ("UPDATE meta SET value = x'00' WHERE name = 'secret'", "no secret"),
            ("DROP TABLE meta", "cannot be read"),
        ],
    )
    def test_a_file_that_lacks_a_part(self, start, path, damage, match):
        start().end()
        with sqlite3.connect(path) as connection:
            connection.execute(damage)
        connection.close()
        self.refused(path, match)

    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE conversations SET key = x'00'",
            "UPDATE conversations SET ids = x'0011'",
            "UPDATE conversations SET ids = zeroblob(176)",
            "UPDATE conversations SET ends = x'00'",
            "UPDATE conversations SET ends = zeroblob(40)",
            "UPDATE conversations SET named = 1, ids = key, ends = zeroblob(180)",
            "UPDATE conversations SET data = x'0000'",
            "UPDATE conversations SET shape = 'x'",
            "UPDATE conversations SET shape = NULL, saved_at = 'never'",
            "UPDATE conversations SET leg = x'00ff'",
            "UPDATE conversations SET tokens = 'many'",
        ],
    )
    def test_a_row_that_no_router_wrote(self, start, path, turns, make_handle, damage):
        first = start()
        first.save(turns.chat("a"), make_handle("a"))
        first.end()
        with sqlite3.connect(path) as connection:
            connection.execute(damage)
        connection.close()
        with pytest.raises(SettingsError, match="is damaged") as caught:
            start()
        assert "Move it away" in caught.value.next_step

    def test_a_page_that_the_disk_lost(self, start, path, turns, make_handle):
        first = start()
        for number in range(50):
            first.save(turns.chat(str(number)), make_handle(str(number)))
        first.end()
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096 * 3)
            file.write(b"\xee" * (size - 4096 * 3))
        with pytest.raises(SettingsError, match="map.sqlite (cannot be read|is damaged)"):
            start()

    def test_one_that_is_in_use(self, start, path):
        start()
        self.refused(path, "in use by another router")

    @pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
    def test_one_that_others_may_read(self, start, path, mode):
        start().end()
        path.chmod(mode)
        self.refused(path, f"open to others .mode {mode:04o}")

    def test_a_folder_or_a_link(self, tmp_path, path):
        with pytest.raises(SettingsError, match="not a regular file"):
            MapFile.open(tmp_path)
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(SettingsError, match="not a regular file"):
            MapFile.open(path)

    def test_a_folder_that_is_not_there(self, tmp_path):
        with pytest.raises(SettingsError, match="cannot be made: No such file") as caught:
            MapFile.open(tmp_path / "none" / "map.sqlite")
        assert "folder that exists" in caught.value.next_step

    def test_an_empty_file_is_a_new_one(self, path, start):
        self.make(path, b"")
        assert len(start().file.secret) == 32


def test_nobody_else_may_read_it(start, path, turns):
    mask = os.umask(0)
    try:
        router = start()
        router.save(turns.chat("a"))
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(mask)
    assert modes[path.name] == 0o600
    assert set(modes.values()) == {0o600}


KILLED = """
import sys, time
from pathlib import Path
from toolkit.router.memory.conversations import Conversations
from toolkit.router.memory.mapfile import MapFile
from toolkit.router.memory.records import Held
from toolkit.router.request.identity import Scope, keys_of_messages

scope = Scope(b"t" * 16, "/v1/chat/completions", "m")
file = MapFile.open(Path(sys.argv[1]))
conversations = Conversations(1e6, 10**6, 1 << 40, journal=file)
for number in range(10**9):
    now = time.monotonic()
    held = Held("http://d1", None, number, 1, now, now)
    conversations.save(keys_of_messages(scope, [b"%d" % number]), held)
    if number == 2000:
        while file.waiting:
            time.sleep(0.01)
        print(file.secret.hex(), flush=True)
    elif number > 2000:
        time.sleep(0.001)
"""


def test_a_killed_router_loses_no_more_than_the_last_moments(path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True)
    with process:
        secret = process.stdout.readline().strip()
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    file = MapFile.open(path)
    conversations = Conversations(1e6, 10**6, 1 << 40)
    file.restore(conversations)
    file.close()
    assert file.secret.hex() == secret
    numbers = {entry.held.tokens for entry in conversations.entries()}
    assert set(range(2001)) <= numbers
    assert numbers == set(range(len(numbers)))
