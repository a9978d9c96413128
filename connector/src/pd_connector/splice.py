"""Puts the KV handle into the last data chunk of a server-sent-event stream. Pure: no vLLM.

Parameters are known only when the engine's last output has passed; from then on no chunk can be waiting
for the engine, so holding one back to see whether it is the last costs the client nothing.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

DONE = "data: [DONE]\n\n"


class Watch:
    """The engine's outputs as they are, noting the handle that comes with the last one."""

    def __init__(self, outputs: AsyncIterator[Any]) -> None:
        self._next = outputs.__aiter__().__anext__
        self.handle: dict[str, Any] | None = None

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> Any:
        """Items are RequestOutput, or pairs of prompt index and RequestOutput."""
        item = await self._next()
        output = item[1] if isinstance(item, tuple) else item
        if output.finished and output.kv_transfer_params:
            self.handle = output.kv_transfer_params
        return item


def with_member(chunk: str, handle: dict[str, Any]) -> str | None:
    """The chunk with the handle as its last member; None for one that is no data object or an error."""
    if not chunk.startswith("data: {") or chunk.startswith('data: {"error"') or not chunk.endswith("}\n\n"):
        return None
    return f"{chunk[:-3]},{_member(handle)}}}\n\n"


async def splice(
    chunks: AsyncGenerator[str, None], watch: Watch, head: dict[str, Any]
) -> AsyncGenerator[str, None]:
    """`chunks` as they are, but for the last one before [DONE].

    Should that one be unable to hold the handle, a chunk without choices follows it, made from `head`.
    A stream that ends in an error gets no handle.
    """
    held: str | None = None
    try:
        async for chunk in chunks:
            if chunk == DONE and watch.handle is not None:
                yield _last(held, watch.handle, head)
                held = None
                yield chunk
                continue
            if held is not None:
                yield held
                held = None
            if watch.handle is None:
                yield chunk
            else:
                held = chunk
        if held is not None:
            yield held
    finally:
        # The engine must learn at once that the client has gone.
        await chunks.aclose()


def _last(held: str | None, handle: dict[str, Any], head: dict[str, Any]) -> str:
    if held is None:
        return _extra(handle, head)
    if held.startswith('data: {"error"'):
        return held
    return with_member(held, handle) or held + _extra(handle, head)


def _extra(handle: dict[str, Any], head: dict[str, Any]) -> str:
    opening = json.dumps({**head, "choices": []}, separators=(",", ":"))
    return f"data: {opening[:-1]},{_member(handle)}}}\n\n"


def _member(handle: dict[str, Any]) -> str:
    return '"kv_transfer_params":' + json.dumps(handle, separators=(",", ":"))
