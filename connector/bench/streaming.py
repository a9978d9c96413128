"""What the handle in the stream costs per token, with vLLM's generator replaced by a plain one. No engine.

python bench/streaming.py [TOKENS]
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import ground

from pd_connector.splice import DONE, Watch, splice

HANDLE = {"remote_host": "h", "pd_blocks": ["A" * 2000]}
CHUNK = 'data: {"id":"1","choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'


async def outputs(tokens: int) -> AsyncGenerator[Any, None]:
    for number in range(tokens):
        last = number == tokens - 1
        yield SimpleNamespace(finished=last, kv_transfer_params=HANDLE if last else None)


async def stock(source: Any) -> AsyncGenerator[str, None]:
    async for _ in source:
        yield CHUNK
    yield DONE


async def consume(chunks: AsyncGenerator[str, None]) -> int:
    return sum([len(chunk) async for chunk in chunks])


async def plain(tokens: int) -> int:
    return await consume(stock(outputs(tokens)))


async def with_handle(tokens: int) -> int:
    watch = Watch(outputs(tokens))
    return await consume(splice(stock(watch), watch, {"id": "1"}))


def microseconds(step: Any, tokens: int, rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        asyncio.run(step(tokens))
        times.append(time.perf_counter() - start)
    return 1e6 * min(times) / tokens


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(ground.describe())
    before, after = microseconds(plain, tokens), microseconds(with_handle, tokens)
    print(f"{tokens} tokens: {before:.2f} us per token without parameters (vLLM's own generator object)")
    print(
        f"{' ' * len(str(tokens))}         {after:.2f} us per token with them: {after - before:.2f} us more"
    )


if __name__ == "__main__":
    main()
