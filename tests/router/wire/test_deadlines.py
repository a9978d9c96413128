"""The one timer: who is late is told, who is not is left alone, and it stops with the last."""

import asyncio
import math
import time

from toolkit.router.wire.deadlines import Deadlines


class Dated:
    def __init__(self, deadline):
        self.deadline = deadline
        self.expirations = 0

    def expired(self):
        self.expirations += 1
        self.deadline = math.inf


def test_only_who_is_late_is_told_and_once(run, until):
    async def main():
        deadlines = Deadlines(0.01)
        late, later, never = Dated(time.monotonic()), Dated(time.monotonic() + 3600), Dated(math.inf)
        for dated in (late, later, never):
            deadlines.add(dated)
        await until(lambda: late.expirations)
        await asyncio.sleep(0.05)
        assert [dated.expirations for dated in (late, later, never)] == [1, 0, 0]
        later.deadline = 0.0
        await until(lambda: later.expirations)
        assert (len(deadlines), set(deadlines.watched())) == (3, {late, later, never})

    run(main())


def test_the_timer_runs_only_while_there_is_something_to_watch(run, until):
    async def main():
        deadlines = Deadlines(0.01)
        for _ in range(2):
            dated = Dated(0.0)
            deadlines.add(dated)
            await until(lambda dated=dated: dated.expirations)
            deadlines.discard(dated)
            deadlines.discard(dated)
            gone = Dated(0.0)
            deadlines.add(gone)
            deadlines.discard(gone)
            await asyncio.sleep(0.03)
            assert (gone.expirations, len(deadlines)) == (0, 0)

    run(main())


def test_what_came_while_the_loop_was_blocked_is_read_first(run):
    """An engine is not silent because we were deaf."""

    async def main():
        deadlines = Deadlines(0.01)
        dated = Dated(time.monotonic() + 0.05)
        deadlines.add(dated)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0)
        writer.write(b"x")
        time.sleep(0.1)
        # The echo lies in the socket by now, and the deadline is over.
        await reader.readexactly(1)
        heard_in_time = dated.expirations == 0
        dated.deadline = time.monotonic() + 3600
        writer.close()
        assert heard_in_time

    async def with_server():
        nonlocal port

        async def echo(reader, writer):
            writer.write(await reader.readexactly(1))
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            await main()
        finally:
            server.close()

    port = 0
    run(with_server())
