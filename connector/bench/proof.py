"""What the proof of a long history costs the scheduler: digests, block ids, the whole handle. No engine.

python bench/proof.py [TOKENS] [BLOCK_SIZE]
"""

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import ground

from pd_connector.blockids import pack, unpack
from pd_connector.handle import Proof
from pd_connector.proof import Context, block_digests, prompt_digest


def best(step: Callable[[], Any], rounds: int = 7) -> tuple[float, Any]:
    """Milliseconds of the quickest round, and its answer."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        answer = step()
        times.append(time.perf_counter() - start)
    return 1000 * min(times), answer


def main() -> None:
    tokens, size = (int(word) for word in (sys.argv[1:] + ["100000", "16"][len(sys.argv) - 1 :])[:2])
    print(ground.describe())
    history = [random.randrange(150_000) for _ in range(tokens)]
    context = Context("model", size)
    blocks = tokens // size
    shuffled = random.sample(range(1 << 20), blocks)
    digests_ms, digests = best(lambda: block_digests(history, context))
    prompt_ms, _ = best(lambda: prompt_digest(history, context))
    print(f"{tokens} tokens in blocks of {size}")
    print(f"  digests of the blocks   {digests_ms:7.2f} ms")
    print(f"  digest of the prompt    {prompt_ms:7.2f} ms")
    for kind, ids in (("in one run", list(range(blocks))), ("in no order", shuffled)):
        pack_ms, text = best(lambda ids=ids: pack(ids))
        unpack_ms, _ = best(lambda text=text: unpack(text))
        members = {"pd_blocks": [text], "pd_proof": Proof(size, blocks * size, digests).to_wire()}
        print(
            f"  block ids {kind:<12}  {pack_ms:7.2f} ms to pack, {unpack_ms:.2f} ms to unpack; "
            f"blocks and proof {len(json.dumps(members))} bytes of JSON"
        )


if __name__ == "__main__":
    main()
