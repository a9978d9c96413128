"""A router of a few lines between the load and the stub engines, with faults that the benchmark must see."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from bench.router.client import Door
from bench.router.stub import Pair, listener, serve
from bench.router.targets import Router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass
class PlainRouter:
    """Prefill, then decode, each over a new connection.

    `spoil` may change what decode is sent, `cut` ends the answer early.
    """

    pair: Pair
    prefill: Door
    decode: Door
    spoil: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: body
    cut: bool = False
    without_prefill: bool = False
    doors: list[Door] = field(default_factory=list)
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve_one(reader, writer))
        self.connections.add(task)
        task.add_done_callback(self.connections.discard)

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                await self.answer(head, reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = orjson.loads(await reader.readexactly(_length(head)))
        if not self.without_prefill:
            miss = {"do_remote_decode": True, "do_remote_prefill": False}
            answer = await _ask(self.prefill, body | {"kv_transfer_params": miss})
            params = orjson.loads(answer.partition(b"\r\n\r\n")[2])["kv_transfer_params"]
            body |= {"kv_transfer_params": params}
        answer = await _ask(self.decode, self.spoil(body))
        writer.write(answer[:-100] if self.cut else answer)
        if self.cut:
            writer.close()

    def router(self) -> Router:
        return Router(self.doors[0], os.getpid())


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _length(head: bytes) -> int:
    return int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])


async def _ask(door: Door, body: dict[str, Any]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    content = orjson.dumps(body)
    writer.write(door.head(len(content)) + content)
    head = await _head(reader)
    chunked = b"chunked" in head
    rest = await (reader.readuntil(b"\r\n0\r\n\r\n") if chunked else reader.readexactly(_length(head)))
    writer.close()
    return head + rest


@asynccontextmanager
async def plain_router() -> AsyncIterator[PlainRouter]:
    pair, sockets = Pair(), (listener(), listener())
    prefill, decode = (one.getsockname()[1] for one in sockets)
    async with serve(pair, *sockets):
        made = PlainRouter(pair, Door("prefill", prefill), Door("decode", decode))
        server = await asyncio.start_server(made.accept, sock=listener(), limit=1 << 20)
        made.doors.append(Door("plain", server.sockets[0].getsockname()[1]))
        async with server:
            yield made
        # Clients have left: each connection sees that and ends.
        await asyncio.gather(*made.connections, return_exceptions=True)


def with_plain_router(test: Callable[[PlainRouter], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with plain_router() as router:
            await test(router)

    asyncio.run(inside())
