"""The least that can stand between a client and an engine: each client's bytes go to one engine and back, as
they are. What it costs is the machine's and the event loop's; no router on them can take less.

python -m bench.router.bare --port 8000 --decode http://127.0.0.1:8200
"""

from __future__ import annotations

import argparse
import asyncio
from typing import cast
from urllib.parse import urlsplit

import uvloop


class _Side(asyncio.Protocol):
    """One connection of two; what comes goes to `other`, and waits until that is there."""

    def __init__(self) -> None:
        self.other: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            self.other.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            self.other.close()

    def joined(self, other: asyncio.Transport) -> None:
        self.other = other
        other.writelines(self._early)


class _Client(_Side):
    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._engine = (host, port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._reached = asyncio.create_task(self._reach())

    async def _reach(self) -> None:
        transport, engine = await asyncio.get_running_loop().create_connection(_Side, *self._engine)
        engine.joined(self.transport)
        self.joined(transport)


async def serve(port: int, host: str, engine_port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: _Client(host, engine_port), "127.0.0.1", port
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--decode", required=True, metavar="URL")
    given = parser.parse_args()
    url = urlsplit(given.decode)
    uvloop.run(serve(given.port, url.hostname or "127.0.0.1", url.port or 80))
