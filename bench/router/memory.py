"""What the router's map of conversations costs: memory per conversation, time per look-up and save.

python -m bench.router.memory [--conversations 1000 10000 100000] [--block-sizes 16 128] [--tokens 24000]
    [--turns 8] [--pool 131072] [--entries 1000 100000 1000000]

Conversations grow turn by turn side by side, each turn's handle taken before the next is saved, as they do in
a router. Block ids are in random order below --pool. Every number is of a process of its own.
"""

from __future__ import annotations

import argparse
import base64
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.router import handles, machine
from toolkit.router.memory.conversations import Conversations
from toolkit.router.memory.handle import Handle
from toolkit.router.memory.records import Held
from toolkit.router.request.identity import Keys, Scope, keys_of_messages

LEGS = 4
PATTERNS = 64
FOREVER_S = 1e9
NO_BOUND = 1 << 62


def handle_params(tokens: int, block_size: int, pool: int, source: random.Random) -> dict[str, Any]:
    """A handle as a decode engine with the connector gives it."""
    blocks = tokens // block_size
    digests = source.randbytes(handles.proof.BLOCK_DIGEST_BYTES * len(handles.proof.marks(blocks)))
    return {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [[]],
        "remote_engine_id": f"decode+{source.randrange(LEGS):08x}",
        "remote_request_id": "",
        "remote_host": "10.0.0.2",
        "remote_port": 5600,
        "remote_num_tokens": 0,
        "remote_blocks_expiry_time": 0.0,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_registration_generation": 0,
        "transfer_mode": "pull",
        "pd_blocks": [handles.blockids.pack(source.sample(range(pool), blocks))],
        "pd_lease": "",
        "pd_proof": {
            "format": handles.proof.FORMAT,
            "block_size": block_size,
            "tokens": blocks * block_size,
            "digests": base64.b64encode(digests).decode(),
        },
    }


def keys_of_turn(number: int, turn: int) -> Keys:
    """Of a conversation's turn: a system prompt, then user and assistant in turns."""
    scope = Scope(b"t" * 16, "/v1/chat/completions", "model")
    messages = [b'{"role":"system"}', *(b"[%d,%d]" % (number, step) for step in range(2 * turn - 1))]
    return keys_of_messages(scope, messages)


def fill(conversations: Conversations, count: int, args: argparse.Namespace, block_size: int) -> None:
    """All conversations, turn by turn."""
    source = random.Random(count)
    for turn in range(1, args.turns + 1):
        tokens = args.tokens * turn // args.turns
        patterns = [handle_params(tokens, block_size, args.pool, source) for _ in range(PATTERNS)]
        for number in range(count):
            pattern = patterns[number % PATTERNS]
            pattern["remote_request_id"] = f"chatcmpl-{source.randbytes(16).hex()}-0"
            pattern["pd_lease"] = base64.urlsafe_b64encode(source.randbytes(16)).decode()[:22]
            pattern["remote_blocks_expiry_time"] = source.random() * 1e6
            keys = keys_of_turn(number, turn)
            found = conversations.find(keys)
            if found is not None:
                conversations.take(found)
            now = time.monotonic()
            held = Held(
                f"http://d{number % LEGS}", Handle.pack(pattern), tokens, 4 * tokens, now, now, tokens
            )
            conversations.save(keys, held)


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory(count: int, block_size: int, args: argparse.Namespace) -> str:
    before = rss_bytes()
    conversations = Conversations(FOREVER_S, NO_BOUND, NO_BOUND)
    fill(conversations, count, args, block_size)
    after = rss_bytes()
    assert len(conversations) == count
    return (
        f"{count:>8} conversations, blocks of {block_size:>3}: {after / 1e6:7.1f} MB RSS in all, "
        f"{(after - before) / count:7.0f} B each; the map says {conversations.bytes / 1e6:7.1f} MB"
    )


def times(count: int, _block_size: int, args: argparse.Namespace) -> str:
    conversations = Conversations(FOREVER_S, NO_BOUND, NO_BOUND)
    for number in range(count):
        conversations.save(keys_of_turn(number, 1), Held("http://d", None, 1, 1, 0.0, 0.0))
    source = random.Random(1)
    asked = [source.randrange(count) for _ in range(20_000)]
    next_turns = [keys_of_turn(number, 2) for number in asked]
    strangers = [keys_of_turn(count + number, 2) for number in asked]
    hit = per_call(next_turns, conversations.find)
    miss = per_call(strangers, conversations.find)
    handle = Handle.pack(handle_params(args.tokens, args.block_sizes[0], args.pool, source))

    def turn(keys: Keys) -> None:
        found = conversations.find(keys)
        if found is not None:
            conversations.take(found)
        conversations.save(keys, Held("http://d", handle, 1, 1, 0.0, 0.0))

    saved = per_call(next_turns, turn)
    return (
        f"{count:>8} entries: find {hit:5.2f} us, find nothing {miss:5.2f} us, "
        f"find + take + save {saved:5.2f} us"
    )


def per_call(each: Sequence[Keys], step: Callable[[Keys], object]) -> float:
    """Microseconds of CPU of one call; the best of several stretches, for the machine may do other things."""
    best, stretch = float("inf"), 1000
    for start in range(0, len(each), stretch):
        part = each[start : start + stretch]
        begin = time.thread_time()
        for keys in part:
            step(keys)
        best = min(best, (time.thread_time() - begin) / len(part))
    return 1e6 * best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--tokens", type=int, default=24_000)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--pool", type=int, default=1 << 17, help="block ids are below this")
    parser.add_argument("--entries", type=int, nargs="*", default=[1_000, 100_000, 1_000_000])
    args = parser.parse_args()
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    print(f"{args.tokens} tokens in {args.turns} turns, block ids in random order below {args.pool}")
    cases = [(memory, count, size) for size in args.block_sizes for count in args.conversations]
    cases += [(times, count, args.block_sizes[0]) for count in args.entries]
    for case, count, size in cases:
        # A process of its own: what an earlier case left to the allocator is not counted.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(case, (count, size, args)), flush=True)


if __name__ == "__main__":
    main()
